// csrc/record/special/reducers.h: memory that DistributedDataParallel's reducer looks at unasked.
//
// The reducer (torch::...::c10d::Reducer, in C++) keeps gradients in buckets: plain tensors if it
// was made outside of blocks. In a backward pass it writes each gradient to its part of a bucket,
// and asks whether the next one has that memory already (Tensor::is_alias_of), which reads the
// storage and comes through no kernel of ours. So there is to be no guard on a bucket then. With
// gradient_as_bucket_view=True gradients are views of buckets, and others write them, too: what was
// seen to be a bucket stays one.
#pragma once

#include "csrc/record/call.h"

namespace lazyeng::record {

/// The plain tensor is one, or a part.
bool is_bucket(const at::Tensor& tensor);

/// The call writes one; or a plain tensor that no Python object stands for, a part of its storage,
/// in a backward pass, which is one from then on.
bool writes_bucket(const Call& call);

/// A collective in a backward pass of one, or of a plain tensor that no Python object stands for,
/// which is one from then on.
bool reduces_bucket(const Call& call);

/// Somebody asks a lazy tensor for its storage, and may look at that of plain tensors next. In a
/// backward pass waits until all recorded writes to these are complete.
void complete_buckets();

}  // namespace lazyeng::record
