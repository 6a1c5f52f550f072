// csrc/run/device/device_queues.h: the engine's queues of a device, each a thread.
//
// One launches all kernels, in the order in which they may be. Several would take turns in the
// driver, each with a handle of cuBLAS and its workspace, and find nothing of the one before in
// their caches; and as long as one is launching, what is recorded meanwhile can wait for it
// (record/window/window.h) and be grouped.
#pragma once

#include <c10/core/Device.h>

#include "csrc/engine/op.h"

namespace lazyeng::run {

enum class DeviceQueue : unsigned {
  copies_to_device,  ///< (host_copy.h)
  copies_from_device,
  waits_for_copies_to,
  waits_for_copies_from,
  launches,
};
constexpr unsigned kDeviceQueues = 5;

inline engine::QueueId queue_of(c10::DeviceIndex index, DeviceQueue which) {
  return static_cast<engine::QueueId>(unsigned(engine::QueueId::first_device) +
                                      kDeviceQueues * static_cast<unsigned>(index) +
                                      unsigned(which));
}

/// Where ops that compute run.
inline engine::QueueId compute_queue(c10::Device device) {
  return device.is_cpu() ? engine::QueueId::cpu : queue_of(device.index(), DeviceQueue::launches);
}

inline bool launches(engine::QueueId queue) {
  return queue >= engine::QueueId::first_device &&
         (unsigned(queue) - unsigned(engine::QueueId::first_device)) % kDeviceQueues ==
             unsigned(DeviceQueue::launches);
}

inline bool computes(engine::QueueId queue) {
  return queue == engine::QueueId::cpu || launches(queue);
}

}  // namespace lazyeng::run
