// csrc/run/host_copy.h: copies between the host's memory and a device's.
//
// Each device has two engine queues for them, one in each direction, each with a stream of its own:
// a copy overlaps the kernels that run meanwhile, and neither thread keeps a worker from its work.
// Such an op is complete when the copy is: whoever waits for it finds the bytes, and a pinned
// buffer that it read may be filled again. (Other ops of a device are complete when their kernels
// are launched: the order of the device's default stream does the rest.)
#pragma once

#include <ATen/core/stack.h>
#include <c10/core/Device.h>

#include "csrc/engine/op.h"
#include "csrc/run/op_info.h"

namespace lazyeng::run {

struct HostCopy {
  enum class Direction : uint8_t { none, to_device, from_device };

  Direction direction = Direction::none;
  c10::DeviceIndex index = 0;
  c10::DeviceType device = c10::kCPU;

  explicit operator bool() const { return direction != Direction::none; }
  static HostCopy between(c10::Device from, c10::Device to);
  engine::QueueId queue() const;
};

/// Runs the op on the stream of such copies, and waits until the device has done it.
void run_host_copy(const HostCopy& copy, const OpInfo& info, torch::jit::Stack& stack);

}  // namespace lazyeng::run
