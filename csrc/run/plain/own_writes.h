// csrc/run/plain/own_writes.h: writes whose version counters move before our kernel is called.
//
// A write is told from interference by being counted before its version counter is bumped
// (storage_var.h). Ops of aten bump after our kernel has returned. Those made by
// torch.library.custom_op bump first, and may be recorded much later: without an announcement, a
// pending read that runs meanwhile would take the bump for interference.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace lazyeng::run {

/// Counts a write of the tensor, which the calling thread is about to bump and then to record;
/// note_own_writes does not count it again.
void announce_own_write(const at::Tensor& tensor);

/// Of a tensor whose counter torch is about to bump once more for writes that were or will be
/// recorded, as an autograd.Function's input that it marked as dirty. To be kept until then: so a
/// var that comes to the counter in between knows of it.
struct TrackedVersion;
std::shared_ptr<TrackedVersion> expect_bump(const at::Tensor& tensor);

}  // namespace lazyeng::run
