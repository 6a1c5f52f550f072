// csrc/record/sync_debug.cpp: measuring waits and reporting them to Python.
#include "csrc/record/sync_debug.h"

#include <torch/csrc/Exceptions.h>

#include "csrc/run/python_ref.h"

namespace lazyeng::record {
namespace {

thread_local bool reports = false;
thread_local WaitScope* outermost = nullptr;

}  // namespace

bool reports_waits() { return reports; }

bool set_reports_waits(bool now) { return std::exchange(reports, now); }

WaitScope::WaitScope(const char* reason) : reason_(reason) {
  if (!reports) return;
  if (!outermost) outermost = this;
  current_ = outermost;
}

WaitScope::~WaitScope() {
  if (current_ == this) outermost = nullptr;
}

void WaitScope::begin(std::string op) {
  if (!current_ || current_->waited_) return;
  current_->waited_ = true;
  current_->op_ = std::move(op);
  current_->start_ = Clock::now();
}

void WaitScope::report() {
  if (current_ != this || !waited_) return;
  const std::chrono::duration<double, std::micro> waited = Clock::now() - start_;
  run::Gil gil;
  outermost = nullptr;  // what warnings call may wait itself
  current_ = nullptr;
  run::PyRef function = run::imported("lazyeng.sync_debug", "report");
  run::PyRef error(
      function ? PyObject_CallFunction(function.get(), "ssd", op_.c_str(), reason_, waited.count())
               : nullptr);
  if (error.get() == Py_None) return;
  if (error) PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.get())), error.get());
  python_error thrown;
  thrown.persist();
  throw thrown;
}

}  // namespace lazyeng::record
