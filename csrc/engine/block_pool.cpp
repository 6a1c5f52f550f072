// csrc/engine/block_pool.cpp: moving lists of free blocks between threads.
#include "csrc/engine/block_pool.h"

#include <mutex>
#include <new>

namespace lazyeng::engine {

void BlockPool::refill(Local& local) {
  {
    std::lock_guard lock(lock_);
    if (lists_) {
      local.head = lists_;
      lists_ = lists_->next_list;
      local.size = kListSize;
      return;
    }
  }
  // One by one: blocks that lie together would fit in pages that nothing else uses, but are then
  // touched all at once although most programs need few.
  auto* const block = static_cast<Block*>(::operator new(block_bytes_));
  block->next = nullptr;
  local = {block, 1};
}

void BlockPool::hand_over(Local& local) noexcept {
  std::lock_guard lock(lock_);
  local.head->next_list = lists_;
  lists_ = local.head;
  local = {nullptr, 0};
}

}  // namespace lazyeng::engine
