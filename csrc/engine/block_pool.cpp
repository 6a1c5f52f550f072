// csrc/engine/block_pool.cpp: moving lists of free blocks between threads.
#include "csrc/engine/block_pool.h"

#include <mutex>
#include <new>
#include <utility>

namespace lazyeng::engine {
namespace {

thread_local constinit bool thread_ends = false;

/// Frees the blocks that a thread has left.
struct OfThread {
  BlockPool::Local* first = nullptr;

  ~OfThread() {
    thread_ends = true;
    for (BlockPool::Local* local = first; local; local = local->next) {
      while (BlockPool::Block* const block = local->head) {
        local->head = block->next;
        ::operator delete(block);
      }
      local->size = 0;
    }
  }
};
thread_local OfThread of_thread;

}  // namespace

/// What the thread has there is freed when it ends.
void BlockPool::note(Local& local) noexcept {
  if (local.known || thread_ends) return;
  local.known = true;
  local.next = std::exchange(of_thread.first, &local);
}

void BlockPool::refill(Local& local) {
  note(local);
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
  local.head = block;
  local.size = 1;
}

void BlockPool::hand_over(Local& local) noexcept {
  note(local);
  if (local.head) {  // (it has none before the first)
    std::lock_guard lock(lock_);
    local.head->next_list = lists_;
    lists_ = local.head;
  }
  local.head = nullptr;
  local.size = 0;
}

}  // namespace lazyeng::engine
