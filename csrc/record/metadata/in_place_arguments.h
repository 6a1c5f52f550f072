// csrc/record/metadata/in_place_arguments.h: what ops that write their first argument refuse of
// others.
//
// What is written looks as before, so nobody has to be asked what such an op returns; but its
// kernel may refuse sizes and dtypes. Smaller tensors tell so only of contiguous tensors of a few
// sizes. (bernoulli of a tensor of probabilities is here beside its in-place form.)
#pragma once

#include "csrc/record/call.h"

namespace lazyeng::record {

/// True: only a run tells whether masked_scatter_, put_, bernoulli or embedding_renorm_ takes it.
bool in_place_arguments_may_be_refused(const Call& call);

}  // namespace lazyeng::record
