// csrc/record/process/signals.cpp: asking Python.
#include "csrc/record/process/signals.h"

#include "csrc/run/failures/python_error.h"
#include "csrc/run/python_ref.h"

namespace lazyeng::record {

std::exception_ptr raised_by_signal() {
  run::Gil gil;
  if (PyErr_CheckSignals() == 0) return nullptr;
  try {
    run::throw_current_python_error();
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace lazyeng::record
