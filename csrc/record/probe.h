// csrc/record/probe.h: would the real kernel refuse these dtypes?
//
// Meta functions are laxer than kernels: mm of float by double, bitwise_and of floats, a dtype that
// a kernel was never compiled for. Eager raises such errors at the call, so recording must as well.
// For each (op, dtypes) seen for the first time, the real kernel is called on small stand-ins. If
// it works, the dtypes are fine. If it does not, the call runs at once, and eager's own answer is
// what the user gets.
#pragma once

#include "csrc/record/call.h"

namespace lazyeng::record {

/// True if only a run can tell whether the kernel takes these arguments.
bool kernel_may_refuse(const Call& call);

/// A run of the call succeeded: no need to ask again for these dtypes.
void note_kernel_accepted(const Call& call);

}  // namespace lazyeng::record
