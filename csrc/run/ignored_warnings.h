// csrc/run/ignored_warnings.h: a scope in which torch's warnings on this thread go nowhere.
#pragma once

#include <c10/util/Exception.h>

namespace lazyeng::run {

/// While metadata is inferred (kernels that are tried on stand-ins warn when they run for real),
/// and while our kernels take the place of others.
class IgnoredWarnings {
 public:
  IgnoredWarnings();
  ~IgnoredWarnings();
  IgnoredWarnings(const IgnoredWarnings&) = delete;
  IgnoredWarnings& operator=(const IgnoredWarnings&) = delete;

 private:
  class Nothing final : public c10::WarningHandler {
    void process(const c10::Warning&) override {}
  };
  Nothing handler_;
  c10::WarningUtils::WarningHandlerGuard guard_;
};

}  // namespace lazyeng::run
