// csrc/run/cores/shares.h: what of a tensor is one of so many shares, as libraries give them to
// their threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>

namespace lazyeng::run {

/// Of the tensor along a dim. The first shares have one more where not all can be alike.
inline at::Tensor share_of(const at::Tensor& all, int64_t dim, int share, int shares) {
  const int64_t least = all.size(dim) / shares, larger = all.size(dim) % shares;
  return all.narrow(dim, share * least + std::min<int64_t>(share, larger),
                    least + (share < larger ? 1 : 0));
}

/// What shares have summed up, in the memory of the first: added up in their order, to a zero (two
/// negative zeros are a positive one so). One share is all.
inline at::Tensor sum_of_shares(c10::ArrayRef<at::Tensor> shares) {
  at::Tensor sum = shares[0];
  for (const at::Tensor& share : shares.slice(1)) sum.add_(share);
  return shares.size() > 1 ? sum.add_(0) : sum;
}

}  // namespace lazyeng::run
