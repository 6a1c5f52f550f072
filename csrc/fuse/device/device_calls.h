// csrc/fuse/device/device_calls.h: recorded calls that hand-written kernels run in place of torch's
// own.
//
// Which ops have such kernels, and how they are launched, is said by a table in Python
// (lazyeng/fuse/chosen). An engine thread that is to run calls looks up what they look like: ops,
// looks of tensors, all arguments but numbers that are data (is_data). The first time it asks for
// kernels (csrc/fuse/device/kernel_requests.h), and torch's run, as they do for ever if the table
// has none.
#pragma once

#include <exception>
#include <functional>

#include "csrc/fuse/device/device_group.h"
#include "csrc/run/node.h"

namespace lazyeng::fuse {

/// What decides which kernels run calls: what Python gets to see. Immutable; any thread.
struct DeviceCalls {
  struct Tensor {
    enum class State : uint8_t {
      given,
      made,  ///< by a call; there is memory for it
      dead,  ///< the same, but nobody wants it: there is none
    };
    run::GeometryRef look;
    State state = State::given;
    bool aligned = true;  ///< to 16 bytes
  };
  struct Call {
    const run::OpInfo* info = nullptr;
    c10::SmallVector<c10::IValue, 6> args;  ///< as run::Node::args
    std::vector<int16_t> tensors;           ///< of each of the node's; negative: none
    std::vector<int16_t> results;           ///< the same
  };
  std::vector<Tensor> tensors;
  std::vector<Call> calls;
  bool tf32 = false;  ///< products of float32 may be rounded
  c10::DeviceIndex device = 0;
};

/// Whether the argument is a number that no choice of kernels depends on: floats, and numbers other
/// than what they usually are.
bool is_data(const run::OpInfo& op, size_t index, const c10::IValue& value);

/// Runs the calls, in the order of recording, by hand-written kernels. `error` is set if only part
/// of that was done. On an engine thread, without the GIL, as launch_group. `is_dead`: nobody wants
/// this result.
Launched launch_calls(c10::ArrayRef<run::Node*> nodes,
                      const std::function<bool(const run::Value&)>& is_dead,
                      std::exception_ptr& error);

/// run::OwnKernels: of one node.
bool run_by_hand(run::Node& node);

}  // namespace lazyeng::fuse
