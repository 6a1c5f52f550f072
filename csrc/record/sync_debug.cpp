// csrc/record/sync_debug.cpp: measuring waits and reporting them to Python.
#include "csrc/record/sync_debug.h"

#include <atomic>

#include "csrc/run/failures/python_error.h"
#include "csrc/run/python_ref.h"

namespace lazyeng::record {
namespace {

thread_local bool reports = false;
std::atomic<bool> all_report{false};
thread_local WaitScope* outermost = nullptr;

}  // namespace

bool reports_waits() { return reports; }

bool waits_are_heard_of() { return reports || all_report.load(std::memory_order_relaxed); }

bool set_reports_waits(bool now) { return std::exchange(reports, now); }

void set_all_waits_reported(bool reported) {
  all_report.store(reported, std::memory_order_relaxed);
}

WaitScope::WaitScope(const char* reason) : reason_(reason) {
  if (!waits_are_heard_of()) return;
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
  const auto ns = [](Clock::time_point time) {
    return static_cast<long long>(time.time_since_epoch() / std::chrono::nanoseconds(1));
  };
  const long long begin = ns(start_), end = ns(Clock::now());
  run::Gil gil;
  outermost = nullptr;  // what warnings call may wait itself
  current_ = nullptr;
  run::PyRef function = run::imported("lazyeng.sync_debug", "report");
  run::PyRef error(
      function ? PyObject_CallFunction(function.get(), "ssLL", op_.c_str(), reason_, begin, end)
               : nullptr);
  if (error.get() == Py_None) return;
  if (error) PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.get())), error.get());
  run::throw_current_python_error();
}

}  // namespace lazyeng::record
