// csrc/run/device/host_copy.h: copies between the host's memory and a device's.
//
// Each device has two engine queues for them, one in each direction, each with a stream of its own:
// a copy overlaps the kernels that run meanwhile, and neither thread keeps a worker from its work.
//
// Such an op is launched, and gives up its claim on the device's memory: kernels that use that
// memory may be launched at once, since they wait on the device (streams.h), and the queue goes on
// to the next copy. The op moves to another queue, whose thread waits until the device has done the
// copy. Only then is the op complete: until then it keeps the memory of both sides alive, the
// engine keeps whoever writes or reads the host's side away, and its bytes count as pending.
//
// A copy to the host that does not ask for non_blocking goes to memory that the device cannot write
// by itself: torch waits for it, and so does the thread of its queue.
#pragma once

#include <c10/core/Device.h>

#include "csrc/run/device/device_queues.h"
#include "csrc/run/device/streams.h"

namespace lazyeng::run {

struct HostCopy {
  enum class Direction : uint8_t { none, to_device, from_device };

  Direction direction = Direction::none;
  c10::DeviceIndex index = 0;
  c10::DeviceType device = c10::kCPU;

  explicit operator bool() const { return direction != Direction::none; }
  static HostCopy between(c10::Device from, c10::Device to);
  /// Where it is launched, and where it is waited for.
  engine::QueueId queue() const;
  engine::QueueId queue_of_waits() const;
  /// The stream of such copies.
  c10::Stream stream() const;
};

/// A copy that was launched.
struct CopyInFlight {
  CopyInFlight(EventRef done, uint64_t ticket, uint64_t launched)
      : done(std::move(done)), ticket(ticket), launched(launched) {}

  EventRef done;
  uint64_t ticket;    ///< in the log of launches
  uint64_t launched;  ///< what of the program's stream is done when it is; 0: it follows nothing
};

/// Waits, on the host, until the event has come. Throws if the device is lost.
void wait_for_event(const c10::Event& event);

}  // namespace lazyeng::run
