// csrc/record/metadata/probe.h: would the kernel refuse these arguments, which the meta function
// takes?
//
// Meta functions of structured and of pointwise ops are laxer than kernels: mm of float by double,
// bitwise_and of floats, a dtype that a kernel was never compiled for, gelu(approximate="x"). Eager
// raises such errors at the call, so recording must as well. For arguments of a kind seen for the
// first time (dtypes, ranks, all that is no tensor), the kernel is called on small stand-ins. If it
// works, they are fine. If it does not, the call runs at once, and eager's own answer is what the
// user gets. So it does where made-up arguments would do harm and the dtypes are not those that
// every kernel has.
#pragma once

#include "csrc/record/call.h"

namespace lazyeng::record {

/// True if only a run can tell whether the kernel takes these arguments.
bool kernel_may_refuse(const Call& call);

/// True if the kernel refuses the dtypes of the arguments, and would take usual_dtypes(): cdist of
/// float and double, an index of floats. Few meta functions look. Also true where no trial tells
/// and the dtypes are not usual, until a run has; false where a trial could do harm.
bool kernel_may_refuse_dtypes(const Call& call);

/// True for calls with out= of a kind of which none has run yet: meta functions written in Python
/// take results of other dtypes than the kernel does.
bool out_may_be_refused(const Call& call);

/// Many kernels do nothing with empty tensors, and refuse nothing.
bool some_are_empty(const Call& call);

/// A run of the call succeeded: no need to ask again for arguments of this kind.
void note_kernel_accepted(const Call& call);

}  // namespace lazyeng::record
