// csrc/record/metadata/meta_trust.h: who is believed, besides a run, for calls of which kinds.
//
// Not all of them tell the truth: for layer_norm of bfloat16 one speaks of what the GPU's kernel
// makes, and those written in Python do not always hand strides on as kernels do. So what an op
// returns is learned from runs first, and after a few of them its meta function is compared with
// the next. It is then believed for calls of that kind: the same dtypes, ranks and arguments that
// are no tensors. Of arguments that are not contiguous (a transposed view, a slice) the kind has
// the order of their strides, and where these leave gaps; and more than one run must agree. What
// the kernel makes of smaller tensors (smaller.h) is believed likewise, after fewer runs.
#pragma once

#include <functional>

#include "csrc/record/call.h"

namespace lazyeng::record {

/// Whether the meta function's answer about the call is a plan. (The op has one, and is not known
/// to be wrong.)
bool meta_is_believed(const Call& call);

/// The call has been run to learn from it. Every now and then `agrees(exactly)` is asked whether
/// the meta function says what the run made; strides that no element can show count only if
/// `exactly`.
void note_run(const Call& call, const std::function<bool(bool exactly)>& agrees);

/// Whether what the kernel makes of smaller tensors is believed.
bool smaller_is_believed(const Call& call);
/// Whether it may still be, or is.
bool smaller_may_be_asked(const Call& call);
/// It has been compared with a run.
void note_smaller(const Call& call, bool agrees);

}  // namespace lazyeng::record
