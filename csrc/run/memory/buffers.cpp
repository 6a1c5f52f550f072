// csrc/run/memory/buffers.cpp: size classes, and buffers on loan.
#include "csrc/run/memory/buffers.h"

#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <mutex>
#include <new>
#include <unordered_map>
#include <vector>

#include "csrc/run/memory/small_buffers.h"

namespace lazyeng::run {
namespace {

/// Below this, pages are there already: such memory lies in heaps that are not given back.
constexpr uint64_t kMinPooled = uint64_t{32} << 10;
/// Classes for each power of two: at most a ninth of a buffer is unused when it is new,
constexpr uint64_t kClassesPerDoubling = 8;
/// and at most a third when a kept one of a larger class is taken.
constexpr size_t kLargerClasses = 2;
constexpr size_t kClasses = 64 * kClassesPerDoubling;

size_t class_of(uint64_t nbytes) {
  const uint64_t step = std::bit_floor(nbytes) / kClassesPerDoubling;
  const uint64_t steps = (nbytes + step - 1) / step;  // kClassesPerDoubling to twice as many
  return static_cast<size_t>(std::bit_width(nbytes) - 1) * kClassesPerDoubling + steps -
         kClassesPerDoubling;
}

uint64_t size_of(size_t index) {
  return (kClassesPerDoubling + index % kClassesPerDoubling)
         << (index / kClassesPerDoubling - std::bit_width(kClassesPerDoubling) + 1);
}

class Pool {
 public:
  explicit Pool(uint64_t limit) : limit_(limit) {}

  void set_limit(uint64_t limit) {
    std::lock_guard lock(mutex_);
    limit_ = limit;
  }

  /// A kept buffer of the class, or one a little larger; null if there is none.
  void* lend(size_t index) {
    std::lock_guard lock(mutex_);
    for (size_t i = index; i <= index + kLargerClasses && i < kClasses; ++i) {
      if (kept_[i].empty()) continue;
      Record record = std::move(kept_[i].back());
      kept_[i].pop_back();
      kept_bytes_ -= size_of(i);
      void* const memory = record.key();
      lent_.insert(std::move(record));
      count_used(size_of(i));
      return memory;
    }
    return nullptr;
  }

  void* lend_fresh(size_t index, at::DataPtr memory) {
    void* const address = memory.get();
    std::lock_guard lock(mutex_);
    lent_.emplace(address, Buffer{index, std::move(memory)});
    count_used(size_of(index));
    return address;
  }

  bool take_back(void* memory) noexcept {
    Record not_kept;
    std::vector<Record> dropped;  // both are freed after the lock
    std::lock_guard lock(mutex_);
    Record record = lent_.extract(memory);
    if (!record) return false;
    used_ -= size_of(record.mapped().index);
    try {
      if (size_of(record.mapped().index) <= limit_) keep(record, dropped);
    } catch (const std::bad_alloc&) {
      // (This is a deleter: what cannot be noted is freed.)
    }
    not_kept = std::move(record);
    return true;
  }

  void empty() {
    std::vector<Record> dropped;
    std::lock_guard lock(mutex_);
    while (kept_bytes_ != 0) dropped.push_back(drop_largest());
  }

  void hold() { mutex_.lock(); }
  void let_go() { mutex_.unlock(); }

  BufferStats stats() {
    std::lock_guard lock(mutex_);
    return {kept_bytes_, used_, peak_};
  }

 private:
  struct Buffer {
    size_t index;
    at::DataPtr memory;
  };
  /// Those on loan, by address. A record is handed on between here and kept_, never made anew.
  using Lent = std::unordered_map<void*, Buffer>;
  using Record = Lent::node_type;

  void count_used(uint64_t size) {
    used_ += size;
    peak_ = std::max(peak_, used_);
  }

  void keep(Record& record, std::vector<Record>& dropped) {
    const size_t index = record.mapped().index;
    const uint64_t size = size_of(index);
    // The largest go first: they make the most room, and are the least likely to be asked for.
    while (kept_bytes_ + size > limit_) dropped.push_back(drop_largest());
    kept_[index].push_back(std::move(record));
    kept_bytes_ += size;
    largest_ = std::max(largest_, index);
  }

  /// Something must be kept.
  Record drop_largest() {
    while (kept_[largest_].empty()) --largest_;
    Record record = std::move(kept_[largest_].back());
    kept_[largest_].pop_back();
    kept_bytes_ -= size_of(largest_);
    return record;
  }

  std::mutex mutex_;
  uint64_t limit_;
  Lent lent_;
  std::array<std::vector<Record>, kClasses> kept_;
  size_t largest_ = 0;  ///< no larger class has a buffer
  uint64_t kept_bytes_ = 0, used_ = 0, peak_ = 0;
};

/// Whether small memory comes from lists. Not if the pool's bound is too low for it to keep
/// anything: then nothing is kept.
constinit std::atomic<bool> keeps_small{true};

Pool* pool = nullptr;  // made at import, never destroyed: any thread may free a buffer at any time

void take_back(void* memory) { pool->take_back(memory); }

/// Asks for pages of 2 MiB, where the memory has room for some: one page fault in place of 512. (A
/// hint; the pages at both ends stay small.)
void ask_for_large_pages(void* memory, uint64_t size) {
#ifdef MADV_HUGEPAGE
  constexpr uintptr_t kPage = uintptr_t{2} << 20;
  const auto begin = (reinterpret_cast<uintptr_t>(memory) + kPage - 1) / kPage * kPage;
  const auto end = (reinterpret_cast<uintptr_t>(memory) + size) / kPage * kPage;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

at::DataPtr allocate(uint64_t size) {
  at::DataPtr memory = c10::GetDefaultCPUAllocator()->allocate(size);
  ask_for_large_pages(memory.get(), size);
  return memory;
}

at::DataPtr fresh(uint64_t size) {
  try {
    return allocate(size);
  } catch (...) {
    pool->empty();
  }
  return allocate(size);
}

}  // namespace

void install_buffer_pool(uint64_t limit) {
  keeps_small.store(limit >= kMinPooled, std::memory_order_relaxed);
  pool ? pool->set_limit(limit) : void(pool = new Pool(limit));
}

at::DataPtr allocate_buffer(uint64_t nbytes) {
  if (nbytes - 1 < kLargestSmallBuffer && keeps_small.load(std::memory_order_relaxed))  // (not 0)
    return allocate_small_buffer(nbytes);
  if (!pool || nbytes < kMinPooled) return c10::GetDefaultCPUAllocator()->allocate(nbytes);
  const size_t index = class_of(nbytes);
  void* memory = pool->lend(index);
  if (!memory) memory = pool->lend_fresh(index, fresh(size_of(index)));
  return {memory, memory, &take_back, c10::Device(c10::kCPU)};
}

bool take_back_buffer(void* memory) { return pool && pool->take_back(memory); }

bool frees_buffers(c10::DeleterFnPtr deleter) {
  return deleter == &take_back || frees_small_buffers(deleter);
}

void hold_buffers() {
  if (pool) pool->hold();
  hold_small_buffers();
}

void let_go_of_buffers() {
  let_go_of_small_buffers();
  if (pool) pool->let_go();
}

void empty_buffer_pool() {
  if (pool) pool->empty();
}

BufferStats buffer_stats() { return pool ? pool->stats() : BufferStats{}; }

}  // namespace lazyeng::run
