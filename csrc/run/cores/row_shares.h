// csrc/run/cores/row_shares.h: where the shares of an elementwise kernel's threads begin.
//
// Such a kernel goes over rows: elements that are evenly apart in all tensors. The last few of a
// row, less than a vector, it does in another way, which may round otherwise. Threads take equal
// shares of all elements, so the last few are the same ones only if each share begins at a whole
// number of vectors in its row.
#pragma once

#include <c10/util/SmallVector.h>

#include "csrc/run/geometry.h"

namespace lazyeng::run {

class RowShares {
 public:
  /// All elements are one row.
  explicit RowShares(int64_t numel) : rows_{numel}, numel_(numel) {}
  /// Rows that differ from tensor to tensor, as some are broadcast, or have gaps: those of the
  /// innermost dim of the result, of the two innermost if these can be merged, and so on.
  explicit RowShares(const Geometry& result);

  bool begin_at_vectors(int threads) const;

 private:
  bool begin_at_vectors_of(int64_t shares) const;

  c10::SmallVector<int64_t, 5> rows_;  ///< all lengths that are possible
  int64_t numel_;
};

}  // namespace lazyeng::run
