// csrc/record/device/device_bounds.h: run-ahead in bytes, where a device has less memory than the
// host.
#pragma once

#include <c10/core/Device.h>

#include "csrc/engine/engine.h"

namespace lazyeng::record {

/// From the first call for a device on, what may be pending is at most an eighth of its memory.
void bound_by_memory_of(c10::Device device, engine::Engine& engine);

}  // namespace lazyeng::record
