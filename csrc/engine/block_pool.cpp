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
    for (BlockPool::Local* local = first; local; local = local->next) local->pool->free_all(*local);
  }
};
thread_local OfThread of_thread;

}  // namespace

/// What the thread has there is freed when it ends.
void BlockPool::note(Local& local) noexcept {
  if (local.pool || thread_ends) return;
  local.pool = this;
  local.next = std::exchange(of_thread.first, &local);
}

void BlockPool::refill(Local& local) {
  note(local);
  {
    std::lock_guard lock(lock_);
    if (lists_) {
      local.head = lists_;
      lists_ = lists_->next_list;
      --num_lists_;
      local.size = kListSize;
      return;
    }
  }
  // One by one: blocks that lie together would fit in pages that nothing else uses, but are then
  // touched all at once although most programs need few.
  auto* const block = static_cast<Block*>(source_.allocate(block_bytes_));
  block->next = nullptr;
  local.head = block;
  local.size = 1;
}

void BlockPool::hand_over(Local& local) noexcept {
  note(local);
  if (local.head && !share(local.head)) return free_all(local);  // (it has none before the first)
  local.head = nullptr;
  local.size = 0;
}

/// False: there are enough.
bool BlockPool::share(Block* list) noexcept {
  std::lock_guard lock(lock_);
  if (num_lists_ >= source_.most_shared) return false;
  list->next_list = std::exchange(lists_, list);
  ++num_lists_;
  return true;
}

void BlockPool::free_all(Local& local) noexcept {
  while (Block* const block = local.head) {
    local.head = block->next;
    source_.free(block);
  }
  local.size = 0;
}

}  // namespace lazyeng::engine
