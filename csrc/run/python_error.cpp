// csrc/run/python_error.cpp: what torch calls python_error, and what pybind11 has in its place.
#include "csrc/run/python_error.h"

#include <torch/csrc/Exceptions.h>

#include "csrc/run/python_ref.h"

namespace lazyeng::run {
namespace {

/// torch.OutOfMemoryError (libtorch_python does not export it); borrowed. GIL.
PyObject* out_of_memory_type() {
  static PyObject* const type = [] {
    PyObject* torch = PyImport_ImportModule("torch");
    PyObject* found = torch ? PyObject_GetAttrString(torch, "OutOfMemoryError") : nullptr;
    Py_XDECREF(torch);
    if (!found) PyErr_Clear();
    return found;
  }();
  return type;
}

}  // namespace

void throw_current_python_error() {
  const Gil gil;
  python_error error;
  error.persist();
  throw error;
}

void translate_to_python(const std::exception_ptr& error) {
  torch::translate_exception_to_python(error);
}

bool is_python_error(const std::exception_ptr& error) noexcept {
  try {
    std::rethrow_exception(error);
  } catch (const python_error&) {
    return true;
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

}  // namespace lazyeng::run
