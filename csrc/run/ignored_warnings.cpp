// csrc/run/ignored_warnings.cpp: what torch says once in a process is not said to nobody.
#include "csrc/run/ignored_warnings.h"

#include <mutex>

namespace lazyeng::run {
namespace {

/// While such a scope is open on any thread, TORCH_WARN_ONCE warns each time, and does not remember
/// that it has: the kernel warns of it again when it runs for real.
class Forgetful {
 public:
  void enter() {
    std::lock_guard lock(mutex_);
    if (scopes_++ > 0) return;
    before_ = c10::WarningUtils::get_warnAlways();
    if (!before_) c10::WarningUtils::set_warnAlways(true);
  }
  void leave() {
    std::lock_guard lock(mutex_);
    if (--scopes_ == 0 && !before_) c10::WarningUtils::set_warnAlways(false);
  }

 private:
  std::mutex mutex_;
  int scopes_ = 0;
  bool before_ = false;
};
Forgetful& forgetful() {
  static Forgetful* const instance = new Forgetful;  // engine threads may outlive statics
  return *instance;
}

}  // namespace

IgnoredWarnings::IgnoredWarnings() : guard_(&handler_) { forgetful().enter(); }
IgnoredWarnings::~IgnoredWarnings() { forgetful().leave(); }

}  // namespace lazyeng::run
