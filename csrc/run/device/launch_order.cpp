// csrc/run/device/launch_order.cpp: waits and notes of each op.
//
// Why no kernel and no copy ever meets memory too early or too late:
//   L1  What an op reads was written, and what it overwrites was used, by ops that are launched and
//       noted (its claims are granted after that), or by whoever made a plain tensor, on the
//       program's stream or before the program let that stream wait. A copy, whose stream is not
//       the program's, waits for that one too.
//   L2  A note comes after its launch, also where an exception leaves the op, so the event in it,
//       or one that is recorded on the default stream later, covers the launch.
//   L3  The allocator is told of a use while the op still holds the memory.
#include "csrc/run/device/launch_order.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "csrc/run/plain/plain_storage.h"

namespace lazyeng::run {
namespace {

/// On the device that the value is on, if an op of several devices uses it.
c10::Stream stream_for(const Value& value, const c10::Stream& stream) {
  const c10::Device device = value.geometry().device();
  return device == stream.device() ? stream : default_stream(device);
}

/// f(value, written) for each value on a device.
template <class F>
void for_each_use(const Node& node, const F& f) {
  for (const TensorArg& arg : node.tensors)
    if (arg.value && !arg.value->geometry().device().is_cpu()) f(*arg.value, arg.written);
}

void add_waits(const Node& node, StreamWaits& waits, const c10::Stream& stream) {
  const bool on_default = stream == default_stream(stream.device());
  const bool copies = node.host_copy && stream != node.stream();
  if (copies && (node.info.writes || node.host_copy.direction == HostCopy::Direction::from_device))
    waits.add(node.stream());
  for_each_use(node, [&](const Value& value, bool written) {
    const StreamUses& uses = value.var().streams;
    if (!on_default || !uses.only_default()) uses.add_to(waits, stream_for(value, stream), written);
  });
}

void tell_allocator(const StorageVar& var, const c10::Stream& stream) {
  const c10::Storage& memory = var.engine_face();
  if (!memory || memory.device() != stream.device()) return;
  const c10::impl::VirtualGuardImpl guard(stream.device_type());
  guard.recordDataPtrOnStream(owning_data(memory), stream);
}

void note(const Node& node, const c10::Stream& stream, const EventRef& done) {
  for_each_use(node, [&](const Value& value, bool written) {
    StorageVar& var = value.var();
    if (!done && var.streams.only_default()) {
      // (Once is enough: the allocator forgets nothing until the memory is freed.)
      if (var.pool_is_unknown.load(std::memory_order_relaxed)) {
        tell_allocator(var, stream_for(value, stream));
        var.pool_is_unknown.store(false, std::memory_order_relaxed);
      }
      return;
    }
    const c10::Stream used = stream_for(value, stream);
    tell_allocator(var, used);
    var.streams.note(used, written, used == stream ? done : nullptr);
  });
  if (!done) return;
  for (const ValueRef& output : node.outputs)
    if (output && !output->geometry().device().is_cpu())
      output->var().streams.note(stream, true, done);
}

/// A thread has a context of CUDA's from its first call that needs one. cuBLAS is no such call, and
/// warns of a thread that has none.
void has_context(const c10::impl::VirtualGuardImpl& guard, const c10::Stream& stream) {
  static thread_local bool has = false;
  if (!std::exchange(has, true)) guard.queryStream(stream);
}

}  // namespace

c10::Stream launch_stream(const Node& node) {
  return node.host_copy ? node.host_copy.stream() : node.stream();
}

OnStream::OnStream(const Node& node) {
  if (node.device.is_cpu()) return;
  const c10::Stream stream = launch_stream(node);
  const c10::impl::VirtualGuardImpl guard(stream.device_type());
  if (!node.captured) has_context(guard, stream);
  if (guard.getStream(stream.device()) != stream) guard_.reset_stream(stream);
}

void wait_for_other_streams(c10::ArrayRef<const Node*> nodes) {
  if (nodes[0]->captured) return;
  const c10::Stream stream = launch_stream(*nodes[0]);
  StreamWaits waits(stream);
  for (const Node* node : nodes) add_waits(*node, waits, stream);
  waits.block();
}

EventRef note_launch(c10::ArrayRef<const Node*> nodes) {
  if (nodes[0]->captured) return nullptr;
  const c10::Stream stream = launch_stream(*nodes[0]);
  const EventRef done = stream == default_stream(stream.device()) ? nullptr : event_on(stream);
  for (const Node* node : nodes) note(*node, stream, done);
  return done;
}

void note_interrupted_launch(c10::ArrayRef<const Node*> nodes) noexcept {
  if (nodes[0]->device.is_cpu()) return;
  try {
    note_launch(nodes);
  } catch (...) {
    // The device is lost: who uses the memory tells.
  }
}

// (Also of a copy, which the host has waited for: its memory is of the stream of copies, and must
// not go to the next one before kernels on the default stream have read it.)
void note_found(const Node& node, StorageVar& var) {
  const c10::Storage& memory = var.engine_face();
  if (node.device.is_cpu() || !memory || memory.device() != node.device) return;
  const c10::Stream stream = launch_stream(node);
  if (stream == default_stream(stream.device())) return;
  try {
    var.streams.note(stream, /*writes=*/true, event_on(stream));
  } catch (const c10::Error&) {
    // The device is lost: who uses it tells.
  }
}

void give_to_current_stream(const StorageVar& var) {
  const c10::Storage& memory = var.engine_face();
  if (!memory || memory.device_type() == c10::kCPU) return;
  const c10::impl::VirtualGuardImpl guard(memory.device_type());
  const c10::Stream stream = guard.getStream(memory.device());
  const bool on_default = stream == guard.getDefaultStream(memory.device());
  if (on_default && var.streams.only_default()) return;
  StreamWaits waits(stream);
  var.streams.add_to(waits, stream, /*writes=*/true);
  waits.block();
  tell_allocator(var, stream);
}

}  // namespace lazyeng::run
