// csrc/record/thread_mode.cpp: entering and leaving lazy() blocks.
#include "csrc/record/thread_mode.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <atomic>
#include <memory>

#include "csrc/record/carried.h"
#include "csrc/run/memory/cpu_allocator.h"

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

// Of the calling thread, outermost first; and those that an OutsideBlock has set aside.
thread_local std::vector<OpenBlock> open_blocks;
thread_local std::vector<std::vector<OpenBlock>*> set_aside;

constexpr const char* kCarried = "lazyeng.block";

void be_in_innermost() {
  ThreadMode& current = detail::thread_mode;
  current = ThreadMode();
  if (!open_blocks.empty()) {
    current.mode = open_blocks.back().mode;
    current.depth = static_cast<uint32_t>(open_blocks.size());
    current.block = open_blocks.back().number;
  }
  include_lazy_key(current.inside());
  run::allocate_in_block(current.inside());
  if (current.inside())
    carry(kCarried, std::make_shared<Carried<ThreadMode>>(current));
  else
    carry_no_more(kCarried);
}

}  // namespace

const ThreadMode& detail::mode_outside() {
  static thread_local ThreadMode outside;
  outside = {default_mode(), 0, 0};
  // (What a block includes is carried too, and asked for in less time.)
  if (c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::PrivateUse1))
    if (const auto* mode = carried<ThreadMode>(kCarried)) outside = *mode;
  return outside;
}

const ThreadMode& detail::mode_in_sync_only() {
  static thread_local ThreadMode in_sync;
  in_sync = thread_mode.depth != 0 ? thread_mode : mode_outside();
  in_sync.mode = Mode::sync;
  return in_sync;
}

void set_default_mode(Mode mode) { default_mode_.store(mode, std::memory_order_relaxed); }
Mode default_mode() {
  return records_in_sync_only() ? Mode::sync : default_mode_.load(std::memory_order_relaxed);
}

void record_in_sync_only() { detail::sync_only.store(true, std::memory_order_relaxed); }
bool records_in_sync_only() { return detail::sync_only.load(std::memory_order_relaxed); }

uint64_t enter_block(Mode mode) {
  const uint64_t number = next_block.fetch_add(1, std::memory_order_relaxed);
  open_blocks.push_back({mode, number});
  be_in_innermost();
  return number;
}

void leave_block(uint64_t block) {
  const auto is_it = [&](const OpenBlock& open) { return open.number == block; };
  std::erase_if(open_blocks, is_it);
  for (std::vector<OpenBlock>* blocks : set_aside) std::erase_if(*blocks, is_it);
  be_in_innermost();
}

bool is_open_here(uint64_t block) {
  return std::any_of(open_blocks.begin(), open_blocks.end(),
                     [&](const OpenBlock& open) { return open.number == block; });
}

bool alone_holds_back(uint64_t block) {
  return std::ranges::all_of(open_blocks, [&](const OpenBlock& open) {
    return open.number == block || open.mode == Mode::sync;
  });
}

OutsideBlock::OutsideBlock() : active_(!open_blocks.empty()) {
  if (!active_) return;
  set_aside.push_back(&blocks_);
  blocks_.swap(open_blocks);
  be_in_innermost();
}

// What was entered meanwhile, and is open still, lies within those that were there before.
OutsideBlock::~OutsideBlock() {
  if (!active_) return;
  std::erase(set_aside, &blocks_);
  blocks_.insert(blocks_.end(), open_blocks.begin(), open_blocks.end());
  open_blocks.swap(blocks_);
  be_in_innermost();
}

}  // namespace lazyeng::record
