// csrc/record/sync_debug.h: tells a thread that asks for it where it waits
// (lazyeng.set_sync_debug_mode).
#pragma once

#include <chrono>
#include <string>

namespace lazyeng::record {

/// Whether waits of the calling thread are reported. set returns what was before.
bool reports_waits();
bool set_reports_waits(bool reports);
/// Whether anybody wants to know of waits of the calling thread.
bool waits_are_heard_of();
/// Whether waits of all threads are reported, for a trace.
void set_all_waits_reported(bool reported);

/// Something that may wait, once or several times; one report tells of all of it. A scope within
/// another one's belongs to that. Costs a thread-local read if waits are not reported.
class WaitScope {
 public:
  /// `reason`: a string literal.
  explicit WaitScope(const char* reason);
  ~WaitScope();
  WaitScope(const WaitScope&) = delete;
  WaitScope& operator=(const WaitScope&) = delete;

  /// Whether somebody wants to know what is waited for.
  bool wanted() const { return current_ != nullptr; }
  /// A wait begins: for this op, "" for more than one.
  void begin(std::string op);
  /// All waits are over: calls lazyeng.sync_debug.report, and throws what that makes of it as
  /// python_error. Takes the GIL. Nothing if nothing was waited for, or within another scope.
  void report();

 private:
  using Clock = std::chrono::steady_clock;
  WaitScope* current_ = nullptr;  ///< the outermost scope of the thread
  const char* reason_;
  std::string op_;
  bool waited_ = false;
  Clock::time_point start_;
};

}  // namespace lazyeng::record
