// csrc/record/metadata/smaller.h: what an op makes of large tensors, told by its kernel on smaller
// ones.
//
// Each size above a few is exchanged for a small number, equal ones for equal ones and larger ones
// for larger, in the tensors and among the integers of the call (the k of topk, the shape of a
// norm). The kernel is asked for three such exchanges. A size of a result must either be an
// exchanged one in all three, and then is the size that was exchanged; or the same number in all
// three; or else nothing is told.
//
// That is for ops whose kernels check sizes, and whose results have sizes of their arguments
// (OpInfo::checks_sizes): not computed ones (the length of a slice). Kernels that trust sizes to
// fit each other would go beyond the ends of shrunken arguments (ctc_loss has lengths among its
// numbers).
//
// This takes microseconds. torch's meta functions of most such ops are Python, and the first that
// is asked imports some 800 modules.
#pragma once

#include "csrc/record/metadata/infer.h"

namespace lazyeng::record {

struct SmallerAnswer {
  CallPlanRef plan;      ///< null: nothing is told (another op, odd strides)
  bool refused = false;  ///< but that the kernel refuses the call, or these sizes
};
SmallerAnswer ask_kernel_on_smaller(const Call& call);

/// Whether the kernel works on smaller tensors of these dtypes (none: of those that the call has),
/// without gaps. False: it does not, or cannot be asked.
bool kernel_takes_smaller(const Call& call, const std::vector<c10::ScalarType>& dtypes);

}  // namespace lazyeng::record
