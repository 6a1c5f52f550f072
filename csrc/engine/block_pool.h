// csrc/engine/block_pool.h: memory for small objects that one thread makes and another one drops.
//
// Nodes, values and vars are made by the recording thread and mostly dropped by a worker. malloc
// pays for that with a lock and a cold free list at both ends. Here each thread has a list of free
// blocks; full lists go as a whole to a shared list, from which threads without blocks take them.
//
// Memory is kept for the next object of the same class: at most what run-ahead once needed, or as
// many lists as the source of the blocks allows. The blocks that a thread has when it ends are
// freed, as a program may begin and end any number of threads. Thread safety: any thread allocates
// and frees.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

#include "csrc/engine/prefetch.h"
#include "csrc/engine/spin_lock.h"

namespace lazyeng::engine {

/// Where blocks come from and go to.
struct BlockSource {
  void* (*allocate)(size_t bytes);  ///< throws if there is no memory
  void (*free)(void* block) noexcept;
  size_t most_shared;  ///< lists that no thread has; more are freed
};
inline constexpr BlockSource kHeap{[](size_t bytes) { return ::operator new(bytes); },
                                   [](void* block) noexcept { ::operator delete(block); },
                                   SIZE_MAX};

class BlockPool {
 public:
  explicit constexpr BlockPool(size_t block_bytes, const BlockSource& source = kHeap)
      : block_bytes_(block_bytes), source_(source) {}

  static constexpr size_t kListSize = 64;

  struct Block {
    Block* next;       ///< in its list
    Block* next_list;  ///< in the shared list of lists; of a list's first block
  };
  /// A thread's free blocks. No destructor: objects may be dropped after the thread's destructors
  /// ran. (Those blocks stay.)
  struct Local {
    Block* head = nullptr;
    size_t size = kListSize;    ///< before the first: so that give() and take() come to note()
    BlockPool* pool = nullptr;  ///< once it is known to the thread's end
    Local* next = nullptr;      ///< of the same thread
  };

  void* take(Local& local) {
    if (!local.head) refill(local);
    Block* const block = local.head;
    local.head = block->next;
    --local.size;
    if (local.head) prefetch_to_write(local.head, block_bytes_);
    return block;
  }

  /// Keeps all threads' hands off the shared list, so that a fork finds it whole.
  void hold() noexcept { lock_.lock(); }
  void let_go() noexcept { lock_.unlock(); }

  void give(Local& local, void* memory) noexcept {
    if (local.size == kListSize) hand_over(local);
    auto* const block = static_cast<Block*>(memory);
    block->next = local.head;
    local.head = block;
    ++local.size;
  }

  void free_all(Local& local) noexcept;

 private:
  void note(Local& local) noexcept;
  void refill(Local& local);
  void hand_over(Local& local) noexcept;
  bool share(Block* list) noexcept;

  const size_t block_bytes_;
  const BlockSource& source_;
  SpinLock lock_;
  Block* lists_ = nullptr;
  size_t num_lists_ = 0;
};

/// Base of a final class T whose objects come from a pool of their own.
template <class T>
struct Pooled {
#if !defined(__SANITIZE_ADDRESS__)  // which finds uses after free only if memory is really freed
  static void* operator new(size_t) { return pool().take(local()); }
  static void operator delete(void* memory) noexcept { pool().give(local(), memory); }
  static void hold_pool() noexcept { pool().hold(); }
  static void let_go_of_pool() noexcept { pool().let_go(); }

 private:
  static BlockPool& pool() noexcept {
    static constinit BlockPool instance(sizeof(T));
    static_assert(alignof(T) <= alignof(std::max_align_t));
    return instance;
  }
  static BlockPool::Local& local() noexcept {
    static thread_local constinit BlockPool::Local instance;
    return instance;
  }
#else
  static void hold_pool() noexcept {}
  static void let_go_of_pool() noexcept {}
#endif
};

}  // namespace lazyeng::engine
