// csrc/run/caller/as_engine_thread.h: a thread of the program that runs ops of the engine for a
// while.
#pragma once

#include <ATen/ThreadLocalState.h>
#include <c10/core/AutogradState.h>
#include <c10/util/Exception.h>

#include <optional>

#include "csrc/run/caller/thread_settings.h"
#include "csrc/run/executor.h"

namespace lazyeng::run {

/// Makes the calling thread as an engine thread is, for a scope: whatever the program has set up on
/// it (modes, transforms, hooks, autocast, inference mode) is none of the ops' business.
class AsEngineThread {
 public:
  AsEngineThread();
  ~AsEngineThread();
  /// Whether the calling thread is within such a scope.
  static bool active();
  AsEngineThread(const AsEngineThread&) = delete;
  AsEngineThread& operator=(const AsEngineThread&) = delete;

 private:
  /// Puts the dispatch keys back, and tells lazyeng's own kernels of factories.
  const RealDispatch real_;
  /// Microseconds; only for a thread with more to hide than keys and autograd's switches.
  std::optional<at::ThreadLocalStateGuard> everything_;
  const c10::AutogradState autograd_;
  const c10::WarningUtils::WarningHandlerGuard warnings_;
  const ThreadSettings settings_;
  const bool from_pool_;
  const bool outer_;
};

}  // namespace lazyeng::run
