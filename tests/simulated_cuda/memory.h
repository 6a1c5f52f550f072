// tests/simulated_cuda/memory.h: memory of the devices, by stream, and the host's pinned memory.
#pragma once

#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "streams.h"

namespace {

struct Block {
  void* data;
  size_t size;
  StreamThread* stream;
  std::set<StreamThread*> also_used_by;
  CaptureRef pool;  // that it is of; null: anybody's
};

/// As CUDA's caching allocator: a freed block goes to the next that asks on the same stream, at
/// once. What other streams do with it is waited for only if recordDataPtrOnStream told of it.
/// Unlike CUDA's, it gives nothing back by itself when a device is full: emptyCache() is asked to.
class DeviceMemory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    const int device = current_device;
    Block* block = take(stream_of(device), (std::max<size_t>(size, 1) + 511) / 512 * 512);
    return {block->data, block, &give_back, {c10::kCUDA, c10::DeviceIndex(device)}};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t count) const override {
    std::memcpy(to, from, count);
  }

  bool initialized() override { return true; }
  /// What no stream is at work on.
  void emptyCache(c10::MempoolId_t) override {
    std::lock_guard lock(mutex());
    collect();
    for (auto& [key, blocks] : free_blocks()) {
      for (Block* block : blocks) {
        block->stream->wait();
        used(block->stream->device()) -= block->size;
        std::free(block->data);
        delete block;
      }
      blocks.clear();
    }
  }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    Block* block = static_cast<Block*>(data.get_context());
    if (!block || data.get_deleter() != &give_back || block->stream == &stream_of(stream)) return;
    std::lock_guard lock(mutex());
    block->also_used_by.insert(&stream_of(stream));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { return {}; }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    std::lock_guard lock(mutex());
    return {limit(device) - std::min(limit(device), used(device)), limit(device)};
  }

  static void freed(int device, size_t bytes) {
    std::lock_guard lock(mutex());
    used(device) -= bytes;
  }
  void set_limit(int device, size_t bytes) {
    std::lock_guard lock(mutex());
    limit(device) = bytes;
    peak(device) = used(device);
  }
  size_t most_used(int device) {
    std::lock_guard lock(mutex());
    return peak(device);
  }

 private:
  struct Waiting {
    Block* block;
    std::vector<EventRef> events;
  };

  /// Blocks that other streams are past.
  static void collect() {
    for (size_t i = waiting().size(); i-- > 0;) {
      const auto& events = waiting()[i].events;
      if (!std::all_of(events.begin(), events.end(), [](auto& e) { return e->is_done(); }))
        continue;
      keep(waiting()[i].block);
      waiting().erase(waiting().begin() + i);
    }
  }

  /// From the system.
  static void* make(int device, size_t size) {
    if (used(device) + size > limit(device))
      throw c10::OutOfMemoryError(
          {__func__, __FILE__, __LINE__},
          "CUDA out of memory. Tried to allocate " + std::to_string(size) + " bytes.");
    used(device) += size;
    peak(device) = std::max(peak(device), used(device));
    void* const data = std::malloc(size);
    std::memset(data, 0xfb, size);
    return data;
  }

  Block* take(StreamThread& stream, size_t size) {
    CaptureRef capture = stream.capture();
    if (own_capture && own_capture != capture) own_capture->refuse("memory for another stream");
    std::lock_guard lock(mutex());
    if (capture) {
      void* data = capture->take(size);
      if (!data) data = make(stream.device(), size);
      return new Block{data, size, &stream, {}, std::move(capture)};
    }
    collect();
    auto& kept = free_blocks()[{&stream, size}];
    if (kept.empty()) return new Block{make(stream.device(), size), size, &stream, {}, nullptr};
    Block* block = kept.back();
    kept.pop_back();
    return block;
  }

  static void keep(Block* block) {
    block->also_used_by.clear();
    block->stream->enqueue([block] { std::memset(block->data, 0xfb, block->size); });
    free_blocks()[{block->stream, block->size}].push_back(block);
  }

  /// Of a graph: what has been freed is overwritten at that place of the graph.
  static void give_back_to_pool(Block* block) {
    if (block->stream->capture() == block->pool) {
      const auto poison = [data = block->data, size = block->size] {
        std::memset(data, 0xfb, size);
      };
      std::lock_guard lock(block->pool->mutex);
      block->pool->work.push_back({poison, /*kernel=*/false});
    }
    block->pool->give_back(block->data, block->size);
    delete block;  // (perhaps the last that holds the pool)
  }

  static void give_back(void* context) {
    Block* block = static_cast<Block*>(context);
    if (block->pool) return give_back_to_pool(block);
    std::lock_guard lock(mutex());
    if (block->also_used_by.empty()) return keep(block);
    check(block->stream->device());  // (as CUDA's allocator, which throws where it frees)
    Waiting waits{block, {}};
    for (StreamThread* stream : block->also_used_by) {
      waits.events.push_back(std::make_shared<Event>());
      record_event(waits.events.back(), *stream);
    }
    waiting().push_back(std::move(waits));
  }

  static size_t& limit(int device) {
    static std::array<size_t, kDevices> bytes{size_t(1) << 40, size_t(1) << 40};
    return bytes[device];
  }
  static size_t& used(int device) {
    static std::array<size_t, kDevices> bytes{};
    return bytes[device];
  }
  static size_t& peak(int device) {
    static std::array<size_t, kDevices> bytes{};
    return bytes[device];
  }
  static std::mutex& mutex() {
    static auto* const made = new std::mutex;
    return *made;
  }
  static std::map<std::pair<StreamThread*, size_t>, std::vector<Block*>>& free_blocks() {
    static auto* const made = new std::map<std::pair<StreamThread*, size_t>, std::vector<Block*>>;
    return *made;
  }
  static std::vector<Waiting>& waiting() {
    static auto* const made = new std::vector<Waiting>;
    return *made;
  }
};

DeviceMemory device_memory;
C10_REGISTER_GUARD_IMPL(CUDA, Guard)
const bool allocator_registered = [] {
  Capture::freed = &DeviceMemory::freed;
  c10::SetAllocator(c10::kCUDA, &device_memory, 1);
  return true;
}();

void Guard::recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const {
  device_memory.recordStream(data, stream);
}

/// Memory that a copy may read or write after the call that launched it.
class PinnedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    void* data = std::malloc(size + 1);
    std::lock_guard lock(mutex_);
    ranges_[static_cast<char*>(data)] = size;
    return {data, data, &give_back, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t count) const override {
    std::memcpy(to, from, count);
  }
  bool has(const void* data) {
    std::lock_guard lock(mutex_);
    auto it = ranges_.upper_bound(static_cast<char*>(const_cast<void*>(data)));
    if (it == ranges_.begin()) return false;
    --it;
    return static_cast<const char*>(data) <= it->first + it->second;
  }

 private:
  static void give_back(void* data);
  std::mutex mutex_;
  std::map<char*, size_t> ranges_;
};
PinnedMemory& pinned_memory() {
  static auto* const made = new PinnedMemory;
  return *made;
}
void PinnedMemory::give_back(void* data) {
  {
    std::lock_guard lock(pinned_memory().mutex_);
    const auto range = pinned_memory().ranges_.find(static_cast<char*>(data));
    std::memset(data, 0xfb, range->second);
    pinned_memory().ranges_.erase(range);
  }
  std::free(data);
}

}  // namespace
