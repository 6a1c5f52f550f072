// csrc/run/unseen.h: a scope whose ops are no calls of the program.
#pragma once

#include <ATen/record_function.h>

#include <optional>

namespace lazyeng::run {

/// torch.profiler does not see what the calling thread calls while this lives. (Torch's guard
/// looks for callbacks anew at its begin and at its end, which takes longer than a small op.)
class Unseen {
 public:
  Unseen() {
    if (at::hasCallbacks()) guard_.emplace();
  }

 private:
  std::optional<at::DisableRecordFunctionGuard> guard_;
};

}  // namespace lazyeng::run
