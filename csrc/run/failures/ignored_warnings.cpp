// csrc/run/failures/ignored_warnings.cpp: what torch says once in a process is not said to nobody.
#include "csrc/run/failures/ignored_warnings.h"

#include <mutex>

namespace lazyeng::run {
namespace {

/// While such a scope is open on any thread, TORCH_WARN_ONCE warns each time, and does not remember
/// that it has: the kernel warns of it again when it runs for real. What the program has set
/// meanwhile is set again in the end.
class Forgetful {
 public:
  void enter() {
    std::lock_guard lock(mutex_);
    if (scopes_++ > 0) return;
    program_ = c10::WarningUtils::get_warnAlways();
    if (!program_) c10::WarningUtils::set_warnAlways(true);
  }
  void leave() {
    std::lock_guard lock(mutex_);
    if (--scopes_ == 0 && !program_) c10::WarningUtils::set_warnAlways(false);
  }

  void set(bool always) {
    std::lock_guard lock(mutex_);
    program_ = always;
    if (scopes_ == 0) c10::WarningUtils::set_warnAlways(always);
  }
  bool get() {
    std::lock_guard lock(mutex_);
    return scopes_ == 0 ? c10::WarningUtils::get_warnAlways() : program_;
  }

 private:
  std::mutex mutex_;
  int scopes_ = 0;
  bool program_ = false;  ///< what the program has set, while there are scopes
};
Forgetful& forgetful() {
  static Forgetful* const instance = new Forgetful;  // engine threads may outlive statics
  return *instance;
}

}  // namespace

IgnoredWarnings::IgnoredWarnings() : guard_(&handler_) { forgetful().enter(); }
IgnoredWarnings::~IgnoredWarnings() { forgetful().leave(); }

void set_warn_always(bool always) { forgetful().set(always); }
bool warns_always() { return forgetful().get(); }

}  // namespace lazyeng::run
