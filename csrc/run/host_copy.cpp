// csrc/run/host_copy.cpp: the streams of copies, and their order with the device's other work.
//
// Why no kernel and no copy ever meets memory too early or too late:
//   H1  What a copy reads or overwrites on the device may be in use by kernels that were launched
//       before: its stream waits for the default stream first. Kernels launched later cannot
//       depend on it, since its op is not complete.
//   H2  Memory that is allocated for its result belongs to the copies' stream; kernels use it on
//       the default stream. recordDataPtrOnStream tells the allocator, which gives it to the next
//       copy only when those kernels are done.
//   H3  Memory of the host is read or written before the op is complete, and the engine keeps
//       whoever writes or reads it away until then.
#include "csrc/run/host_copy.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <map>
#include <mutex>

#include "csrc/run/launch_log.h"

namespace lazyeng::run {
namespace {

using Direction = HostCopy::Direction;

c10::Stream stream_of(const HostCopy& copy, const c10::impl::VirtualGuardImpl& device) {
  static std::mutex mutex;
  static auto* const streams = new std::map<engine::QueueId, c10::Stream>;  // outlives all threads
  std::lock_guard lock(mutex);
  const auto found = streams->find(copy.queue());
  if (found != streams->end()) return found->second;
  const c10::Stream made = device.getStreamFromGlobalPool({copy.device, copy.index});
  return streams->emplace(copy.queue(), made).first->second;
}

bool overwrites_device_memory(const OpInfo& info) { return info.writes; }

}  // namespace

HostCopy HostCopy::between(c10::Device from, c10::Device to) {
  if (from.is_cpu() == to.is_cpu()) return {};
  if (from.is_cpu()) return {Direction::to_device, to.index(), to.type()};
  return {Direction::from_device, from.index(), from.type()};
}

engine::QueueId HostCopy::queue() const {
  return static_cast<engine::QueueId>(unsigned(engine::QueueId::first_device) + 2 * index +
                                      (direction == Direction::from_device));
}

void run_host_copy(const HostCopy& copy, const OpInfo& info, torch::jit::Stack& stack) {
  const c10::impl::VirtualGuardImpl device(copy.device);
  const c10::Stream copies = stream_of(copy, device);
  const c10::Stream kernels = device.getDefaultStream({copy.device, copy.index});
  const bool follows_kernels =
      copy.direction == Direction::from_device || overwrites_device_memory(info);
  const uint64_t launched = launched_so_far({copy.device, copy.index});
  if (follows_kernels) {
    c10::Event launched(copy.device);
    launched.record(kernels);
    launched.block(copies);
  }
  {
    const c10::StreamGuard on_copies(copies);
    info.handle.callBoxed(stack);
  }
  if (copy.direction == Direction::to_device && !overwrites_device_memory(info))
    for (const c10::IValue& result : stack)
      if (result.isTensor())
        device.recordDataPtrOnStream(result.toTensor().storage().data_ptr(), kernels);
  device.synchronizeStream(copies);
  if (follows_kernels) well({copy.device, copy.index}, launched);
}

}  // namespace lazyeng::run
