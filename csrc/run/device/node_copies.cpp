// csrc/run/device/node_copies.cpp: nodes that copy between host and device.
#include "csrc/run/device/launch_log.h"
#include "csrc/run/device/launch_order.h"
#include "csrc/run/node.h"
#include "csrc/run/traces/stream_trace.h"

namespace lazyeng::run {

/// Of a copy: the device's side. Null if it is not recorded.
const Value* Node::on_device() const {
  for (const TensorArg& arg : tensors)
    if (arg.value && !arg.value->geometry().device().is_cpu()) return arg.value.get();
  return outputs.empty() ? nullptr : outputs[0].get();
}

/// The claim on the memory of the device ends with the launch, that on the host's with the copy.
void Node::begin_copy(torch::jit::Stack stack) {
  const bool to_device = host_copy.direction == HostCopy::Direction::to_device;
  const std::optional<int> flag = info.handle.schema().argumentIndexWithName("non_blocking");
  c10::IValue& non_blocking = stack.at(flag.value());
  const bool waited_for = (!to_device && !non_blocking.toBool()) || discovery || waits_for_device;
  const bool follows = !to_device || info.writes;
  const uint64_t launched = follows ? launched_so_far(device) : 0;
  Launch launch(*this);
  wait_for_other_streams(this);
  if (to_device) non_blocking = true;  // (who uses the result waits for it on the device)
  StreamRange range(*this);
  info.handle.callBoxed(stack);
  range.end({.op = &info, .number = number});
  install(std::move(stack));
  auto copy = std::make_shared<CopyInFlight>(note_launch(this), launch.keep(), launched);
  const Value* const there = waited_for ? nullptr : on_device();
  if (!there) return end_copy(*copy);
  in_flight = std::move(copy);
  go_on(host_copy.queue_of_waits(), &there->var());
}

void Node::end_copy(const CopyInFlight& copy) const {
  wait_for_event(*copy.done);
  copied(*this, copy);
  check_plain_reads();  // once more: it may have been changed while the device read it
}

}  // namespace lazyeng::run
