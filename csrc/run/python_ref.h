// csrc/run/python_ref.h: owning references to Python objects, and holding the GIL for a scope.
#pragma once

#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

namespace lazyeng::run {

/// Owns one reference. To be made, copied from and dropped with the GIL held.
class PyRef {
 public:
  PyRef() = default;
  explicit PyRef(PyObject* owned) : object_(owned) {}
  PyRef(PyRef&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  PyRef& operator=(PyRef&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~PyRef() { Py_XDECREF(object_); }
  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

/// Holds the GIL; nests.
class Gil {
 public:
  Gil() : state_(PyGILState_Ensure()) {}
  ~Gil() { PyGILState_Release(state_); }
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;

 private:
  const PyGILState_STATE state_;
};

/// `module.name`, imported; null with a Python error set if there is none (at exit). GIL.
inline PyRef imported(const char* module, const char* name) {
  // (An import asks the builtins of the frame that runs, which may have none: namedtuple's.)
  const PyRef key(PyUnicode_FromString(module));
  PyRef found(key ? PyImport_GetModule(key.get()) : nullptr);
  if (!found && !PyErr_Occurred()) found = PyRef(PyImport_ImportModule(module));
  return found ? PyRef(PyObject_GetAttrString(found.get(), name)) : PyRef();
}

/// Null with a Python error set if there is no memory for it. GIL.
inline PyRef string_list(const std::vector<std::string>& items) {
  PyRef list(PyList_New(static_cast<Py_ssize_t>(items.size())));
  for (size_t i = 0; list && i < items.size(); ++i) {
    PyObject* const item =
        PyUnicode_FromStringAndSize(items[i].data(), static_cast<Py_ssize_t>(items[i].size()));
    if (!item) return PyRef();
    PyList_SET_ITEM(list.get(), i, item);
  }
  return list;
}

/// Whether the calling thread holds the GIL. (PyGILState_Check() says so to every thread once the
/// program has made a subinterpreter.)
inline bool holds_gil() {
  PyThreadState* const own = PyGILState_GetThisThreadState();
  return own && own == _PyThreadState_UncheckedGet();
}

/// Lets go of the GIL for a scope, if this thread holds it.
class NoGil {
 public:
  NoGil() : saved_(holds_gil() ? PyEval_SaveThread() : nullptr) {}
  /// A daemon thread that comes back when the interpreter is ending is ended by it, here, by
  /// unwinding its stack, which would run into code that must not throw: it stays where it is until
  /// the process is gone, as threads do from Python 3.14 on.
  ~NoGil() {
    if (!saved_) return;
    try {
      PyEval_RestoreThread(saved_);
    } catch (abi::__forced_unwind&) {
      for (;;) pause();
    }
  }
  NoGil(const NoGil&) = delete;
  NoGil& operator=(const NoGil&) = delete;

 private:
  PyThreadState* const saved_;
};

}  // namespace lazyeng::run
