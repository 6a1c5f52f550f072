// csrc/run/failures/ignored_warnings.h: scopes in which warnings of torch on this thread go
// nowhere.
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

/// torch.set_warn_always and torch.is_warn_always_enabled, of the program: while some thread
/// ignores warnings torch's own switch is on. Any thread.
void set_warn_always(bool always);
bool warns_always();

/// While one lives, warnings on this thread that have this text go nowhere, all others where they
/// went before: what a kernel says of the form in which we call it is not about the program.
class IgnoredWarning {
 public:
  explicit IgnoredWarning(const char* text)
      : handler_(text, c10::WarningUtils::get_warning_handler()), guard_(&handler_) {}
  IgnoredWarning(const IgnoredWarning&) = delete;
  IgnoredWarning& operator=(const IgnoredWarning&) = delete;

 private:
  class Others final : public c10::WarningHandler {
   public:
    Others(const char* text, c10::WarningHandler* before) : text_(text), before_(before) {}
    void process(const c10::Warning& warning) override {
      if (warning.msg().find(text_) == std::string::npos) before_->process(warning);
    }

   private:
    const char* const text_;
    c10::WarningHandler* const before_;
  };
  Others handler_;
  c10::WarningUtils::WarningHandlerGuard guard_;
};

}  // namespace lazyeng::run
