// csrc/fuse/candidate.h: a node that may join a group, and how it goes over its tensors.
#pragma once

#include "csrc/fuse/iteration.h"
#include "csrc/run/node.h"

namespace lazyeng::fuse {

/// How a node goes over one of its tensors.
struct Mapping {
  const run::Geometry* look = nullptr;  ///< null: no value
  Dims strides;                         ///< as Iteration::strides
  bool parameter = false;  ///< a single element, read before the program runs, or written after it
  int64_t row = 0;         ///< it has one element for each row of so many, in order; 0: it has not

  /// Whether a group that has rows of this length, or none, must know the shape to go over it.
  bool needs_shape(int64_t group_row) const;

  int64_t repeated = 0;  ///< every row of so many elements is the same
};

/// Whether both go over the same memory in the same order.
bool same(const Mapping& a, const Mapping& b);

struct Candidate {
  run::Node* node = nullptr;
  Iteration iteration;
  int64_t row = 0;  ///< elements that it reduces together; 0: it is no reduction along dims
  bool in_place = false;
  bool folds = false;      ///< a reduction to one element
  bool in_shares = false;  ///< a sum of torch's shares of the elements, which are no whole rows
  bool checked =
      false;  ///< torch's bits unless the program says otherwise: it may have to run alone
  c10::SmallVector<Mapping, 4> mappings;  ///< of each tensor argument
  c10::SmallVector<run::Value*, 1>
      results;  ///< that it makes, or the one it writes; null: left out
  c10::SmallVector<Mapping, 1> result_mappings;

  bool needs_shape(int64_t group_row) const;
  /// Everything is linear.
  bool linear() const;
};

/// False if the node never joins a group.
bool describe(run::Node& node, Candidate& candidate);

}  // namespace lazyeng::fuse
