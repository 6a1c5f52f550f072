// csrc/run/cores/row_shares.cpp: shares as at::parallel_for makes them, rows as TensorIterator
// does.
#include "csrc/run/cores/row_shares.h"

#include <algorithm>
#include <numeric>

namespace lazyeng::run {
namespace {

/// A multiple of the elements that any vectorised kernel takes at a time.
constexpr int64_t kVectors = 256;
/// The least share of a thread in torch's elementwise kernels.
constexpr int64_t kLeastShare = 32768;

int64_t ceil_of(int64_t number, int64_t divisor) { return (number + divisor - 1) / divisor; }

}  // namespace

RowShares::RowShares(const Geometry& result) : numel_(result.numel()) {
  // The result is the first operand that dims are ordered by, or is made in their order.
  c10::SmallVector<size_t, 5> dims(result.sizes().size());
  std::iota(dims.begin(), dims.end(), size_t{0});
  std::stable_sort(dims.begin(), dims.end(),
                   [&](size_t a, size_t b) { return result.strides()[a] < result.strides()[b]; });
  int64_t row = 1;
  for (const size_t dim : dims) rows_.push_back(row *= result.sizes()[dim]);
}

bool RowShares::begin_at_vectors(int threads) const {
  const int64_t fewer = std::min<int64_t>(threads, ceil_of(numel_, kLeastShare));
  return begin_at_vectors_of(threads) && begin_at_vectors_of(fewer);
}

bool RowShares::begin_at_vectors_of(int64_t shares) const {
  if (numel_ == 0) return true;
  const int64_t share = ceil_of(numel_, shares);
  const bool of_vectors = share % kVectors == 0;
  return std::all_of(rows_.begin(), rows_.end(), [&](int64_t row) {
    const bool stays_so = row % kVectors == 0 || row % share == 0 || row == numel_;
    return share % row == 0 || (of_vectors && stays_so);
  });
}

}  // namespace lazyeng::run
