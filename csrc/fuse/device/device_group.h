// csrc/fuse/device/device_group.h: launching a group's kernels on its device.
#pragma once

#include <exception>

#include "csrc/fuse/plan.h"

namespace lazyeng::fuse {

enum class Launched : uint8_t {
  yes,
  no,      ///< nothing has happened: the kernels are not there, or cannot run
  partly,  ///< it failed after some of them were launched
};

/// Launches the plan's kernels on the default stream of the group's device, and gives the group's
/// vars the memory made for them. `error` is set if only part of that was done. On an engine
/// thread, without the GIL; every version that the group reads is ready.
Launched launch_group(const Group& group, const GroupPlanRef& plan, std::exception_ptr& error);

}  // namespace lazyeng::fuse
