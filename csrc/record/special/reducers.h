// csrc/record/special/reducers.h: memory that DistributedDataParallel's reducer looks at unasked.
//
// The reducer (torch::...::c10d::Reducer, in C++) keeps gradients in buckets: plain tensors if it
// was made outside of blocks. In a backward pass it writes each gradient to its part of a bucket,
// and asks whether the next one has that memory already (Tensor::is_alias_of), which reads the
// storage and comes through no kernel of ours. So there is to be no guard on a bucket then.
#pragma once

#include "csrc/record/call.h"

namespace lazyeng::record {

/// The call writes a plain tensor that no Python object stands for, a part of its storage, in a
/// backward pass.
bool writes_bucket(const Call& call);

/// A collective of a plain tensor that no Python object stands for, in a backward pass.
bool reduces_bucket(const Call& call);

/// Somebody asks a lazy tensor for its storage, and may look at that of plain tensors next. In a
/// backward pass inside lazy() waits until all recorded writes to these are complete.
void complete_buckets();

}  // namespace lazyeng::record
