// csrc/run/device/launch_log.h: which op a failure of a device is blamed on.
//
// A kernel that fails on a GPU (an assertion, an illegal address) takes the whole context down, and
// some later call tells. So each device has a log of what was launched on it since it was last
// known to be well: the failing op is one of these. The log is kept short by events, by copies to
// the host and by whatever else waits for the device.
//
// Once a device is lost, every op on it fails with the one failure that the log made then.
//
// Thread safety: all functions may be called from any thread, without the GIL.
#pragma once

#include <c10/core/Device.h>

#include <exception>

#include "csrc/engine/wait.h"
#include "csrc/run/failures/failure.h"

namespace lazyeng::run {

class Node;
struct CopyInFlight;

/// The launch of one op's kernels, or of a copy, on its stream. Does nothing for ops of the CPU.
class Launch {
 public:
  /// Throws LostDevice if the device is lost.
  explicit Launch(const Node& node);
  Launch(const Launch&) = delete;
  ~Launch();

  /// The op's stream has been waited for since: these kernels and all before them are done.
  void device_waited_for();
  /// Its number. It stays in the log until somebody tells that the device has done it.
  uint64_t keep() const { return ticket_; }

 private:
  const Node& node_;
  uint64_t ticket_ = 0;    // 0: not of a device, or its kernels are done
  uint64_t launched_ = 0;  // through this ticket, when it began
};

/// Thrown in place of the call of a kernel.
struct LostDevice : std::exception {
  const char* what() const noexcept override { return "lazyeng: the device is lost"; }
};

/// What has been launched on the device now.
uint64_t launched_so_far(c10::Device device);
/// The copy that the node has launched is done, and what it followed.
void copied(const Node& node, const CopyInFlight& copy);

/// The failure of the device if `error` says that it is lost, told by `node`; else null. (All who
/// ask share one root.)
engine::FailurePtr device_failure(const Node& node, const std::exception_ptr& error) noexcept;

/// Waits until what was launched on the device is done. Null, or the failure of the device.
/// `interrupted` is set if `interrupt` ended the wait.
engine::FailurePtr wait_for_device(c10::Device device, const engine::Interrupt& interrupt,
                                   bool& interrupted);
/// Whether the device has something to do, without waiting. `failure` is set if it is lost.
bool is_running(c10::Device device, engine::FailurePtr& failure);
/// Devices that something was launched on which may not be done.
std::vector<c10::Device> busy_devices();

/// Around a fork (csrc/record/process/fork.cpp), with no other thread here.
void launches_after_fork_in_child();

}  // namespace lazyeng::run
