// csrc/fuse/extent.h: what a node goes over, and along which of its dims it reduces.
#pragma once

#include "csrc/fuse/op_table.h"

namespace lazyeng::fuse {

/// Rows that a program may have. In shorter ones a splat would be longer than the row; longer ones,
/// several registers of them, would not stay in the second-level cache.
inline constexpr int64_t kShortestRow = kLanes, kLongestRow = 1 << 15;

struct Extent {
  const run::Geometry* elements = nullptr;  ///< null: no program can do it
  bool folds = false;                       ///< it reduces all of them to one
  int64_t row = 0;  ///< otherwise: how many are reduced together; 0: a pointwise op
};

/// `node.outputs`, or what it writes, is known to be there.
Extent extent_of(const OpRule& rule, const run::Node& node);

/// Of a node that reduces along rows: whether the result has one element a row.
constexpr bool is_row_result(Form form, size_t result) {
  return !is_normalization(form) || result > 0;
}

}  // namespace lazyeng::fuse
