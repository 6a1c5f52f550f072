// csrc/stacks/saved_error.h: keeps the thread's pending Python error for a scope.
#pragma once

#include <Python.h>

namespace lazyeng::stacks {

/// Takes the error that the caller may be handling, and puts it back: what runs in between can
/// clear it. To be made and dropped with the GIL held.
class SavedError {
 public:
  SavedError() noexcept { PyErr_Fetch(&type_, &value_, &traceback_); }
  ~SavedError() { PyErr_Restore(type_, value_, traceback_); }
  SavedError(const SavedError&) = delete;
  SavedError& operator=(const SavedError&) = delete;

 private:
  PyObject *type_, *value_, *traceback_;
};

}  // namespace lazyeng::stacks
