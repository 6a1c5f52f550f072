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

/// Bytes that are kept in any case.
constexpr uint64_t kFew = uint64_t{32} << 20;
/// With each buffer that comes back a peak loses this power of two of what it is above the present:
/// a step of a training loop has some thousand.
constexpr int kForgets = 13;

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
  void* lend(size_t index, Whose whose) {
    std::lock_guard lock(mutex_);
    for (size_t i = index; i <= index + kLargerClasses && i < kClasses; ++i) {
      if (kept_[i].empty()) continue;
      Record record = std::move(kept_[i].back());
      kept_[i].pop_back();
      kept_bytes_ -= size_of(i);
      void* const memory = record.key();
      record.mapped().whose = whose;
      lent_.insert(std::move(record));
      count_used(size_of(i), whose);
      return memory;
    }
    return nullptr;
  }

  void* lend_fresh(size_t index, at::DataPtr memory, Whose whose) {
    void* const address = memory.get();
    std::lock_guard lock(mutex_);
    lent_.emplace(address, Buffer{index, std::move(memory), whose});
    count_used(size_of(index), whose);
    return address;
  }

  bool take_back(void* memory) noexcept {
    Record not_kept;
    std::vector<Record> dropped;  // both are freed after the lock
    std::lock_guard lock(mutex_);
    Record record = lent_.extract(memory);
    if (!record) return false;
    const uint64_t size = size_of(record.mapped().index);
    lent_bytes_ -= size;
    if (record.mapped().whose == Whose::engine) used_ -= size;
    recent_peak_ -= (recent_peak_ - lent_bytes_) >> kForgets;
    try {
      if (size <= most_kept()) keep(record, dropped);
    } catch (const std::bad_alloc&) {
      // (This is a deleter: what cannot be noted is freed.)
    }
    not_kept = std::move(record);
    return true;
  }

  /// (One by one: who calls it lacks memory, also for a list of them.)
  void empty() noexcept {
    Record dropped;
    do {
      dropped = take_oldest();  // (frees the one before, without the lock)
    } while (dropped);
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
    Whose whose;
    uint64_t kept_as = 0;  ///< a number that grows
  };
  /// Those on loan, by address. A record is handed on between here and kept_, never made anew.
  using Lent = std::unordered_map<void*, Buffer>;
  using Record = Lent::node_type;

  void count_used(uint64_t size, Whose whose) {
    lent_bytes_ += size;
    recent_peak_ = std::max(recent_peak_, lent_bytes_);
    if (whose != Whose::engine) return;
    used_ += size;
    peak_ = std::max(peak_, used_);
  }

  /// A program whose tensors grow (a cache of keys and values) asks for other sizes all the time,
  /// and would leave one buffer of each behind.
  uint64_t most_kept() const { return std::min(limit_, 2 * recent_peak_ + kFew); }

  void keep(Record& record, std::vector<Record>& dropped) {
    const size_t index = record.mapped().index;
    const uint64_t size = size_of(index);
    while (kept_bytes_ != 0 && kept_bytes_ + size > most_kept()) dropped.push_back(drop_oldest());
    record.mapped().kept_as = ++ever_kept_;
    kept_[index].push_back(std::move(record));
    kept_bytes_ += size;
  }

  Record take_oldest() noexcept {
    std::lock_guard lock(mutex_);
    return kept_bytes_ == 0 ? Record() : drop_oldest();
  }

  /// What has not been asked for for longest. Something must be kept.
  Record drop_oldest() {
    size_t oldest = 0;
    uint64_t least = UINT64_MAX;
    for (size_t i = 0; i < kClasses; ++i)
      if (!kept_[i].empty() && kept_[i].front().mapped().kept_as < least) {
        oldest = i;
        least = kept_[i].front().mapped().kept_as;
      }
    Record record = std::move(kept_[oldest].front());
    kept_[oldest].erase(kept_[oldest].begin());
    kept_bytes_ -= size_of(oldest);
    return record;
  }

  std::mutex mutex_;
  uint64_t limit_;
  Lent lent_;
  std::array<std::vector<Record>, kClasses> kept_;
  uint64_t ever_kept_ = 0, kept_bytes_ = 0;
  uint64_t used_ = 0, peak_ = 0;  ///< by the engine
  uint64_t lent_bytes_ = 0;
  uint64_t recent_peak_ = 0;  ///< of what was lent
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

/// Null: the system has not so much, also when nothing is kept.
at::DataPtr fresh(uint64_t size) {
  for (int tries : {1, 2}) {
    try {
      return allocate(size);
    } catch (...) {
      if (tries == 1) pool->empty();
    }
  }
  return {};
}

}  // namespace

void install_buffer_pool(uint64_t limit) {
  keeps_small.store(limit >= kMinPooled, std::memory_order_relaxed);
  pool ? pool->set_limit(limit) : void(pool = new Pool(limit));
}

at::DataPtr allocate_buffer(uint64_t nbytes) {
  if (nbytes - 1 < kLargestSmallBuffer && keeps_small.load(std::memory_order_relaxed))  // (not 0)
    return allocate_small_buffer(nbytes);
  return is_large(nbytes) ? allocate_large_buffer(nbytes, Whose::engine)
                          : c10::GetDefaultCPUAllocator()->allocate(nbytes);
}

bool is_large(uint64_t nbytes) { return pool && nbytes >= kMinPooled; }

at::DataPtr allocate_large_buffer(uint64_t nbytes, Whose whose) {
  const size_t index = class_of(nbytes);
  void* memory = pool->lend(index, whose);
  if (!memory) {
    at::DataPtr made = fresh(size_of(index));
    // (A little less may do, and what is raised names the bytes that were asked for.)
    if (!made) return c10::GetDefaultCPUAllocator()->allocate(nbytes);
    memory = pool->lend_fresh(index, std::move(made), whose);
  }
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
