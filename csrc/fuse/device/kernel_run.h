// csrc/fuse/device/kernel_run.h: one run of kernels on a device: memory for partial results,
// arguments, launches. For groups (device_group.cpp) and for calls (device_calls.cpp).
#pragma once

#include <deque>

#include "csrc/fuse/device/device_arguments.h"
#include "csrc/run/device/launch_log.h"
#include "csrc/run/device/launch_order.h"
#include "csrc/run/traces/stream_trace.h"

namespace lazyeng::fuse {

class KernelRun {
 public:
  /// On the stream of the node's program.
  explicit KernelRun(const run::Node& node)
      : device_(node.device), stream_(node.stream().native_handle()) {}

  void make_partials(const GroupKernels& kernels) {
    for (const uint64_t bytes : kernels.partial_bytes)
      partials_.push_back(run::new_storage(bytes, device_));
  }

  /// Binds the arguments of each kernel; `own(argument, arguments)` those that not all runs have.
  /// False if that is.
  template <class Own>
  bool bind(const GroupKernels& kernels, const Own& own) {
    for (const DeviceKernel& kernel : kernels.kernels) {
      LaunchArguments& arguments = bound_.emplace_back();
      for (const KernelArgument& argument : kernel.arguments)
        if (!bind_shared(argument, arguments) && !own(argument, arguments)) return false;
    }
    return true;
  }

  /// Launches all of them, in the place of what `nodes` would launch: any of these may be the one
  /// that a failure is blamed on. `finish()` is called when all are launched, and before others
  /// can see it. Counts them in `launched`.
  template <class Finish>
  void launch(c10::ArrayRef<const run::Node*> nodes, const GroupKernels& kernels,
              const Finish& finish, size_t& launched) {
    std::deque<run::Launch> log;
    for (const run::Node* node : nodes) log.emplace_back(*node);
    run::wait_for_other_streams(nodes);
    try {
      launch_all(nodes, kernels, launched);
      finish();
      run::note_launch(nodes);
    } catch (...) {
      run::note_interrupted_launch(nodes);
      throw;
    }
  }

 private:
  void launch_all(c10::ArrayRef<const run::Node*> nodes, const GroupKernels& kernels,
                  size_t& launched) {
    run::StreamRange range(*nodes[0]);
    for (; launched < kernels.kernels.size(); ++launched) {
      const DeviceKernel& kernel = kernels.kernels[launched];
      kernel.kernel->launch(kernel.grid, stream_, bound_[launched]);
    }
    range.end(run::group_event(nodes));
  }

  bool bind_shared(const KernelArgument& argument, LaunchArguments& arguments) {
    switch (argument.kind) {
      case KernelArgument::Kind::partial:
        arguments.add(memory_of(partials_[argument.index]));
        return true;
      case KernelArgument::Kind::integer:
        add_number(argument.integer, argument.type, arguments);
        return true;
      case KernelArgument::Kind::real:
        add_number(argument.real, argument.type, arguments);
        return true;
      default:
        return false;
    }
  }

  const c10::Device device_;
  void* const stream_;
  std::vector<c10::Storage> partials_;
  std::vector<LaunchArguments> bound_;
};

}  // namespace lazyeng::fuse
