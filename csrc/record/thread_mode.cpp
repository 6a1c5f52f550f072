// csrc/record/thread_mode.cpp: entering and leaving lazy() blocks.
#include "csrc/record/thread_mode.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <atomic>

namespace lazyeng::record {
namespace {

std::atomic<Mode> default_mode_{Mode::async};
std::atomic<uint64_t> next_block{1};

/// Inside a block our kernels are chosen for plain tensors too.
void include_lazy_key(bool include) {
  c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  keys.included_ = include ? keys.included_.add(c10::DispatchKey::PrivateUse1)
                           : keys.included_.remove(c10::DispatchKey::PrivateUse1)
                                 .remove_backend(c10::BackendComponent::PrivateUse1Bit);
  c10::impl::_force_tls_local_dispatch_key_set(keys);
}

}  // namespace

void set_default_mode(Mode mode) { default_mode_.store(mode, std::memory_order_relaxed); }
Mode default_mode() { return default_mode_.load(std::memory_order_relaxed); }

ThreadMode enter_block(Mode mode) {
  const ThreadMode before = thread_mode();
  ThreadMode& current = detail::thread_mode;
  current.mode = mode;
  current.depth = before.depth + 1;
  current.block = next_block.fetch_add(1, std::memory_order_relaxed);
  include_lazy_key(true);
  return before;
}

void leave_block(const ThreadMode& before) {
  detail::thread_mode = before;
  if (!before.inside()) {
    detail::thread_mode.block = 0;
    include_lazy_key(false);
  }
}

OutsideBlock::OutsideBlock() : before_(thread_mode()) {
  if (before_.inside()) leave_block(ThreadMode());
}

OutsideBlock::~OutsideBlock() {
  if (!before_.inside()) return;
  detail::thread_mode = before_;
  include_lazy_key(true);
}

}  // namespace lazyeng::record
