// csrc/run/buffers.cpp: size classes, and buffers on loan.
#include "csrc/run/buffers.h"

#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <bit>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace lazyeng::run {
namespace {

constexpr uint64_t kMinPooled = uint64_t{32} << 10;

/// Four classes for each power of two: at most a fifth of a buffer is unused.
uint64_t class_of(uint64_t nbytes) {
  const uint64_t step = std::bit_floor(nbytes) / 4;
  return (nbytes + step - 1) / step * step;
}

class Pool {
 public:
  explicit Pool(uint64_t limit) : limit_(limit) {}

  void set_limit(uint64_t limit) {
    std::lock_guard lock(mutex_);
    limit_ = limit;
  }

  /// A kept buffer of the class, or null.
  at::DataPtr take(uint64_t size) {
    std::lock_guard lock(mutex_);
    count_used(size);
    const auto found = kept_.find(size);
    if (found == kept_.end()) return {};
    at::DataPtr memory = std::move(found->second.back());
    found->second.pop_back();
    if (found->second.empty()) kept_.erase(found);
    kept_bytes_ -= size;
    return memory;
  }

  void give_back(uint64_t size, at::DataPtr memory) {
    std::vector<at::DataPtr> dropped;  // freed after the lock
    std::lock_guard lock(mutex_);
    used_ -= size;
    if (size > limit_) return dropped.push_back(std::move(memory));
    // The largest go first: they make the most room, and are the least likely to be asked for.
    while (kept_bytes_ + size > limit_) dropped.push_back(drop_largest());
    kept_[size].push_back(std::move(memory));
    kept_bytes_ += size;
  }

  void forget_use(uint64_t size) {
    std::lock_guard lock(mutex_);
    used_ -= size;
  }

  void empty() {
    std::map<uint64_t, std::vector<at::DataPtr>> dropped;
    std::lock_guard lock(mutex_);
    dropped.swap(kept_);
    kept_bytes_ = 0;
  }

  void hold() { mutex_.lock(); }
  void let_go() { mutex_.unlock(); }

  BufferStats stats() {
    std::lock_guard lock(mutex_);
    return {kept_bytes_, used_, peak_};
  }

 private:
  void count_used(uint64_t size) {
    used_ += size;
    peak_ = std::max(peak_, used_);
  }

  at::DataPtr drop_largest() {
    const auto last = std::prev(kept_.end());
    at::DataPtr memory = std::move(last->second.back());
    last->second.pop_back();
    kept_bytes_ -= last->first;
    if (last->second.empty()) kept_.erase(last);
    return memory;
  }

  std::mutex mutex_;
  uint64_t limit_;
  std::map<uint64_t, std::vector<at::DataPtr>> kept_;
  uint64_t kept_bytes_ = 0, used_ = 0, peak_ = 0;
};

Pool* pool = nullptr;  // made at import, never destroyed: any thread may free a buffer at any time

/// A buffer in use: what its DataPtr has as context.
struct Lent {
  uint64_t size;
  at::DataPtr memory;
};

void take_back(void* context) {
  const std::unique_ptr<Lent> lent(static_cast<Lent*>(context));
  pool->give_back(lent->size, std::move(lent->memory));
}

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
  at::DataPtr memory = c10::GetCPUAllocator()->allocate(size);
  ask_for_large_pages(memory.get(), size);
  return memory;
}

at::DataPtr fresh(uint64_t size) {
  try {
    return allocate(size);
  } catch (...) {
    pool->empty();
  }
  try {
    return allocate(size);
  } catch (...) {
    pool->forget_use(size);
    throw;
  }
}

}  // namespace

void install_buffer_pool(uint64_t limit) {
  pool ? pool->set_limit(limit) : void(pool = new Pool(limit));
}

at::DataPtr allocate_buffer(uint64_t nbytes) {
  if (!pool || nbytes < kMinPooled) return c10::GetCPUAllocator()->allocate(nbytes);
  const uint64_t size = class_of(nbytes);
  auto lent = std::make_unique<Lent>(Lent{size, pool->take(size)});
  if (!lent->memory) lent->memory = fresh(size);
  void* const memory = lent->memory.get();
  return {memory, lent.release(), &take_back, c10::Device(c10::kCPU)};
}

void hold_buffers() {
  if (pool) pool->hold();
}

void let_go_of_buffers() {
  if (pool) pool->let_go();
}

void empty_buffer_pool() {
  if (pool) pool->empty();
}

BufferStats buffer_stats() { return pool ? pool->stats() : BufferStats{}; }

}  // namespace lazyeng::run
