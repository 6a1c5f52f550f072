// csrc/run/device/free_memory.h: what can be done for an op that lacks memory, before it tries once
// more.
#pragma once

#include <c10/core/Device.h>

namespace lazyeng::run {

/// Waits until the device has done what was launched on it, so that memory which was freed while
/// other streams used it is free, and gives back what is kept for reuse. On an engine thread.
void free_memory(c10::Device device) noexcept;

/// Of the device; 0: nobody tells.
uint64_t total_memory(c10::Device device) noexcept;

}  // namespace lazyeng::run
