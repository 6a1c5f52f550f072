// csrc/record/device/device_bounds.cpp: lowers the engine's bound once per device.
#include "csrc/record/device/device_bounds.h"

#include <algorithm>
#include <atomic>
#include <mutex>

#include "csrc/run/device/free_memory.h"

namespace lazyeng::record {

void bound_by_memory_of(c10::Device device, engine::Engine& engine) {
  static std::atomic<uint64_t> known{0};  // a bit for each index
  const uint64_t bit = uint64_t{1} << (device.index() % 64);
  if (known.load(std::memory_order_relaxed) & bit) return;
  static std::mutex mutex;  // of two devices at once the smaller bound stays
  const std::lock_guard lock(mutex);
  if (known.fetch_or(bit, std::memory_order_relaxed) & bit) return;
  const uint64_t total = run::total_memory(device);
  engine::Limits limits = engine.limits();
  if (total) limits.max_pending_bytes = std::min(limits.max_pending_bytes, total / 8);
  engine.set_limits(limits);
}

}  // namespace lazyeng::record
