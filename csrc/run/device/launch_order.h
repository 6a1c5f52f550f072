// csrc/run/device/launch_order.h: an op among the streams of its device.
//
// Before a launch the op's stream is made to wait for what other streams do with the memory that
// the op uses; afterwards the vars are told, and so is torch's allocator, which gives memory that
// has been freed to the next op of the stream that it came from: not before the other streams are
// past it (recordDataPtrOnStream).
#pragma once

#include <c10/core/StreamGuard.h>

#include "csrc/run/node.h"

namespace lazyeng::run {

/// Where the op's work goes: the stream of its program, or of such copies.
c10::Stream launch_stream(const Node& node);

/// The op's stream is the calling thread's for a scope. Nothing for the CPU.
class OnStream {
 public:
  explicit OnStream(const Node& node);

 private:
  c10::OptionalStreamGuard guard_;
};

/// Before the launch of the ops, which are of one stream.
void wait_for_other_streams(c10::ArrayRef<const Node*> nodes);
/// After it, when the vars that the ops have made have their memory. Returns an event that comes
/// when the device has done them; null on the default stream.
EventRef note_launch(c10::ArrayRef<const Node*> nodes);
/// The same where an exception comes in between: kernels may have been launched before.
void note_interrupted_launch(c10::ArrayRef<const Node*> nodes) noexcept;
/// The var is a new one for memory that the op has made: what it returns was not known before.
void note_found(const Node& node, StorageVar& var);

/// The calling thread's stream may use the memory from now on: a plain tensor of it was given out.
void give_to_current_stream(const StorageVar& var);

}  // namespace lazyeng::run
