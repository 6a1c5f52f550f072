// csrc/run/caller/thread_settings.h: what kernels read from the thread that they run on.
//
// torch.set_num_threads and torch.set_flush_denormal act on the calling thread. Eager kernels run
// there; ours run on engine threads, so each op carries the settings of the thread that recorded
// it, and the engine thread takes them over first.
#pragma once

#include <cstdint>

namespace lazyeng::run {

struct ThreadSettings {
  int32_t num_threads = 0;  ///< intra-op threads
  bool flush_denormal = false;

  static ThreadSettings of_this_thread();
  /// Makes the calling thread behave as the one that they were read from. Cheap if it does already.
  void apply() const;

  bool operator==(const ThreadSettings&) const = default;
};

}  // namespace lazyeng::run
