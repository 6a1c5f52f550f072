// csrc/run/traces/torch_profiler.h: ops on engine threads are seen by torch.profiler.
//
// It sees the thread that has started it, through callbacks and a state that the thread keeps; as
// autograd's threads do, ours take these over. (enableProfilerInChildThread makes callbacks of its
// own, and the state then forgets those of the program's thread: they stay there for ever.) They
// have them for an op at a time, and the program's thread, before it ends the profile, waits until
// all have given them back: so nobody writes into what it takes apart. What may wait for the
// program (kernels in Python, collectives) is not seen.
#pragma once

#include <atomic>

#include "csrc/engine/op.h"

namespace lazyeng::run {

namespace detail {
inline constinit std::atomic<bool> torch_profiles{false};
}

/// Of one op: while it lives, what the calling thread does is seen. Costs the read of an atomic
/// while nobody profiles.
class SeenByTorchProfiler {
 public:
  explicit SeenByTorchProfiler(const engine::Op& op) noexcept {
    if (detail::torch_profiles.load(std::memory_order_relaxed)) [[unlikely]]
      join(op);
  }
  ~SeenByTorchProfiler() {
    if (before_) [[unlikely]]
      leave();
  }
  SeenByTorchProfiler(const SeenByTorchProfiler&) = delete;
  SeenByTorchProfiler& operator=(const SeenByTorchProfiler&) = delete;

 private:
  void join(const engine::Op& op) noexcept;
  void leave() noexcept;

  struct Keeps;  ///< what a thread keeps
  static Keeps of_this_thread();
  const Keeps* before_ = nullptr;  // owned

  friend void let_threads_join_profile();
  friend void keep_threads_out_of_profile();
};

/// By the thread that has begun a profile: others may join it from now on.
void let_threads_join_profile();
/// None may any more. Returns when all have left; without the GIL.
void keep_threads_out_of_profile();

}  // namespace lazyeng::run
