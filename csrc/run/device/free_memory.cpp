// csrc/run/device/free_memory.cpp: through torch's allocator of the device.
#include "csrc/run/device/free_memory.h"

#include <c10/core/CachingDeviceAllocator.h>

#include "csrc/run/device/launch_log.h"
#include "csrc/run/memory/buffers.h"

namespace lazyeng::run {
namespace {

/// Null if it is of a kind that cannot be asked.
c10::DeviceAllocator* allocator_of(c10::Device device) {
  return dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
}

}  // namespace

void free_memory(c10::Device device) noexcept {
  if (device.is_cpu()) return empty_buffer_pool();
  try {
    bool interrupted = false;
    if (wait_for_device(device, {}, interrupted)) return;  // it is lost: the next launch tells
    if (c10::DeviceAllocator* const allocator = allocator_of(device)) allocator->emptyCache();
  } catch (const std::exception&) {
    // What cannot be freed is not; the op tells.
  }
}

uint64_t total_memory(c10::Device device) noexcept {
  try {
    c10::DeviceAllocator* const allocator = allocator_of(device);
    return allocator ? allocator->getMemoryInfo(device.index()).second : 0;
  } catch (const std::exception&) {
    return 0;
  }
}

}  // namespace lazyeng::run
