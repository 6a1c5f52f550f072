// csrc/run/caller/as_engine_thread.cpp: hiding what the program has set up on a thread.
#include "csrc/run/caller/as_engine_thread.h"

#include <ATen/FuncTorchTLS.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <thread>
#include <utility>
#include <vector>

#include "csrc/run/failures/kernel_warnings.h"
#include "csrc/run/memory/cpu_allocator.h"

// (Its header includes one that torch does not ship.)
namespace at::functorch {
struct DynamicLayer;
TORCH_API const std::vector<DynamicLayer>& getDynamicLayerStack();
}  // namespace at::functorch

namespace lazyeng::run {
namespace {

thread_local constinit bool is_active = false;

/// What torch keeps per thread. Made on a new engine thread: as it is there.
struct Fresh {
  at::ThreadLocalState everything;
  c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  c10::AutogradState autograd = c10::AutogradState::get_tls_state();
};

const Fresh& fresh() {
  static const Fresh* const state = [] {
    const Fresh* made = nullptr;
    std::thread([&] {
      init_engine_thread();
      made = new Fresh;
    }).join();
    return made;
  }();
  return *state;
}

/// Whether the thread is within a transform (vmap, grad). Its first one leaves an empty stack
/// behind.
bool transforms() {
  return at::functorch::functorchTLSAccessor() && !at::functorch::getDynamicLayerStack().empty();
}

/// Whether the calling thread has more than dispatch keys and autograd's switches. (That those are
/// enough then: all that a program sets up on a thread takes part in an op through a key of its
/// own, or is looked at by the kernels of autograd, except for what is asked for here.)
bool has_more() {
  return c10::impl::TorchDispatchModeTLS::any_modes_set() || transforms() ||
         c10::ThreadLocalDebugInfo::current();
}

}  // namespace

AsEngineThread::AsEngineThread()
    : autograd_(c10::AutogradState::get_tls_state()),
      warnings_(&kernel_warning_handler()),
      settings_(ThreadSettings::of_this_thread()),
      from_pool_(allocate_from_pool(true)),
      outer_(std::exchange(is_active, true)) {
  if (has_more()) {
    everything_.emplace(fresh().everything);
  } else {
    c10::impl::_force_tls_local_dispatch_key_set(fresh().keys);
    c10::AutogradState::set_tls_state(fresh().autograd);
  }
}

bool AsEngineThread::active() { return is_active; }

AsEngineThread::~AsEngineThread() {
  is_active = outer_;
  settings_.apply();
  allocate_from_pool(from_pool_);
  if (everything_) return;
  c10::AutogradState::set_tls_state(autograd_);
}

}  // namespace lazyeng::run
