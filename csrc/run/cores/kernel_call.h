// csrc/run/cores/kernel_call.h: a kernel on as many cores as it shall have, and what that took.
#pragma once

#include <ATen/core/stack.h>
#include <c10/util/FunctionRef.h>

#include <mutex>

#include "csrc/run/caller/thread_settings.h"
#include "csrc/run/cores/slices.h"
#include "csrc/run/cores/width.h"

namespace lazyeng::run {

/// An op with a tensor of so many bytes may run on several threads. (at::parallel_for splits from
/// 32,768 elements; those of one byte are the least.)
inline constexpr uint64_t kWideBytes = 32768;

/// Held by what runs on all cores: one op at a time, so that inter-op times intra-op threads stay
/// within the cores. A thread of the program, which runs ops that it reads soon, does not wait for
/// it: if something large has the cores, it gets a lock that holds nothing.
std::unique_lock<std::mutex> take_all_cores();

/// One call on the CPU, of which something is known about the cores that it wants.
class KernelCall {
 public:
  using ResultLooks = c10::SmallVector<const Geometry*, 4>;

  /// `width`: null if nothing is known. `wide`: it may start helpers. `results`: adds what each
  /// result looks like; called only if it matters.
  KernelCall(const OpInfo& info, Width* width, ThreadSettings settings, bool wide,
             c10::function_ref<void(ResultLooks&)> results)
      : info_(info), width_(width), settings_(settings), wide_(wide), results_(results) {}

  /// Exchanges the arguments for the results.
  void run(torch::jit::Stack& stack) const;

 private:
  bool run_narrowly(torch::jit::Stack& stack) const;
  bool run_in_slices(torch::jit::Stack& stack, bool others_help) const;
  template <class Call>
  void measure(int cores, const Call& call) const;

  const OpInfo& info_;
  Width* const width_;
  const ThreadSettings settings_;
  const bool wide_;
  const c10::function_ref<void(ResultLooks&)> results_;
};

}  // namespace lazyeng::run
