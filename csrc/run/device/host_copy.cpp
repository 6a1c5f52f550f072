// csrc/run/device/host_copy.cpp: the queues and streams of copies.
#include "csrc/run/device/host_copy.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <map>
#include <mutex>
#include <thread>

namespace lazyeng::run {

HostCopy HostCopy::between(c10::Device from, c10::Device to) {
  if (from.is_cpu() == to.is_cpu()) return {};
  if (from.is_cpu()) return {Direction::to_device, to.index(), to.type()};
  return {Direction::from_device, from.index(), from.type()};
}

engine::QueueId HostCopy::queue() const {
  return queue_of(index, direction == Direction::to_device ? DeviceQueue::copies_to_device
                                                           : DeviceQueue::copies_from_device);
}

engine::QueueId HostCopy::queue_of_waits() const {
  return queue_of(index, direction == Direction::to_device ? DeviceQueue::waits_for_copies_to
                                                           : DeviceQueue::waits_for_copies_from);
}

c10::Stream HostCopy::stream() const {
  static std::mutex mutex;
  static auto* const streams = new std::map<engine::QueueId, c10::Stream>;  // outlives all threads
  std::lock_guard lock(mutex);
  const auto found = streams->find(queue());
  if (found != streams->end()) return found->second;
  const c10::impl::VirtualGuardImpl guard(device);
  return streams->emplace(queue(), guard.getStreamFromGlobalPool({device, index})).first->second;
}

void wait_for_event(const c10::Event& event) {
  constexpr auto kSpin = std::chrono::microseconds(50);
  constexpr auto kLookEvery = std::chrono::microseconds(50);
  const auto begin = std::chrono::steady_clock::now();
  while (!event.query())
    if (std::chrono::steady_clock::now() - begin > kSpin) std::this_thread::sleep_for(kLookEvery);
}

}  // namespace lazyeng::run
