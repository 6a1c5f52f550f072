// csrc/run/failures/python_error.cpp: what torch calls python_error, and what pybind11 has in its
// place.
#include "csrc/run/failures/python_error.h"

#include <torch/csrc/Exceptions.h>

#include "csrc/run/python_ref.h"

namespace lazyeng::run {
namespace {

/// A class of torch (libtorch_python does not export it); new reference, null if there is none.
/// GIL.
PyObject* class_of_torch(const char* name) {
  PyObject* torch = PyImport_ImportModule("torch");
  PyObject* found = torch ? PyObject_GetAttrString(torch, name) : nullptr;
  Py_XDECREF(torch);
  if (!found) PyErr_Clear();
  return found;
}

PyObject* out_of_memory_type() {
  static PyObject* const type = class_of_torch("OutOfMemoryError");
  return type;
}

PyObject* accelerator_error_type() {
  static PyObject* const type = class_of_torch("AcceleratorError");
  return type;
}

/// Of a Python exception; 0 if it is no torch.AcceleratorError. GIL.
int32_t code_of(PyObject* type, PyObject* value) {
  if (!value || !accelerator_error_type() ||
      !PyErr_GivenExceptionMatches(type, accelerator_error_type()))
    return 0;
  PyObject* code = PyObject_GetAttrString(value, "error_code");
  const long number = code ? PyLong_AsLong(code) : 0;
  Py_XDECREF(code);
  PyErr_Clear();
  return static_cast<int32_t>(number);
}

}  // namespace

bool clear_unless_interrupt() {
  if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception)) return false;
  PyErr_Clear();
  return true;
}

namespace {

/// The text of the error's value, as torch's `persist` has it. That loses what a handler of a
/// signal raises while the text is made (Ctrl-C), which here becomes the error.
void persist(python_error& error) {
  PyErr_Fetch(&error.type, &error.value, &error.traceback);
  error.message = "python_error";
  if (!error.value) return;
  const PyRef text(PyObject_Str(error.value));
  const char* const utf8 = text ? PyUnicode_AsUTF8(text.get()) : nullptr;
  if (utf8) error.message = utf8;
  if (clear_unless_interrupt()) return;
  Py_CLEAR(error.type);
  Py_CLEAR(error.value);
  Py_CLEAR(error.traceback);
  PyErr_Fetch(&error.type, &error.value, &error.traceback);
  error.message = "interrupted";
}

}  // namespace

void throw_current_python_error() {
  const Gil gil;
  python_error error;
  persist(error);
  throw error;
}

namespace {

void set_error(PyObject* type, PyObject* value, PyObject* traceback) {
  PyErr_Restore(Py_XNewRef(type), Py_XNewRef(value), Py_XNewRef(traceback));
}

}  // namespace

/// What is a Python exception already keeps it: torch's translation takes it away, and several ops
/// may have failed with the same one.
void translate_to_python(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (python_error& thrown) {
    thrown.persist();  // (it may still be the thread's pending Python error)
    set_error(thrown.type, thrown.value, thrown.traceback);
  } catch (const pybind11::error_already_set& thrown) {
    set_error(thrown.type().ptr(), thrown.value().ptr(), thrown.trace().ptr());
  } catch (...) {
    torch::translate_exception_to_python(error);
  }
}

bool is_python_error(const std::exception_ptr& error) noexcept {
  try {
    std::rethrow_exception(error);
  } catch (const python_error&) {
    return true;
  } catch (const pybind11::error_already_set&) {
    return true;
  } catch (...) {
    return false;
  }
}

bool is_interrupt(const std::exception_ptr& error) noexcept {
  try {
    std::rethrow_exception(error);
  } catch (python_error& thrown) {
    const Gil gil;
    thrown.persist();  // (it may still be the thread's pending Python error)
    return PyErr_GivenExceptionMatches(thrown.type, PyExc_Exception) == 0;
  } catch (const pybind11::error_already_set& thrown) {
    const Gil gil;
    return !thrown.matches(PyExc_Exception);
  } catch (...) {
    return false;
  }
}

bool is_out_of_memory(const std::exception_ptr& error) noexcept {
  try {
    std::rethrow_exception(error);
  } catch (const c10::OutOfMemoryError&) {
    return true;
  } catch (python_error& thrown) {
    const Gil gil;
    thrown.persist();  // (it may still be the thread's pending Python error)
    PyObject* const type = out_of_memory_type();
    return type && PyErr_GivenExceptionMatches(thrown.type, type) != 0;
  } catch (const pybind11::error_already_set& thrown) {
    const Gil gil;
    PyObject* const type = out_of_memory_type();
    return type && thrown.matches(type);
  } catch (...) {
    return false;
  }
}

int32_t accelerator_error_code(const std::exception_ptr& error) noexcept {
  try {
    std::rethrow_exception(error);
  } catch (const c10::AcceleratorError& thrown) {
    return thrown.get_error_code();
  } catch (python_error& thrown) {
    const Gil gil;
    thrown.persist();
    return code_of(thrown.type, thrown.value);
  } catch (const pybind11::error_already_set& thrown) {
    const Gil gil;
    return code_of(thrown.type().ptr(), thrown.value().ptr());
  } catch (...) {
    return 0;
  }
}

}  // namespace lazyeng::run
