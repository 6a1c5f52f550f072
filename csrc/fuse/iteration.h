// csrc/fuse/iteration.h: how one op goes over the elements of its tensors.
//
// The dims of the result are taken in the order of its memory, dims of size 1 are dropped, and
// neighbours that every tensor crosses evenly are merged. What is linear for every tensor ends up
// with one dim.
#pragma once

#include "csrc/fuse/tiles/tile_program.h"
#include "csrc/run/geometry.h"

namespace lazyeng::fuse {

struct Iteration {
  int64_t numel = 0;
  Dims shape;
  /// Of each operand over the shape; empty: linear.
  c10::SmallVector<Dims, 5> strides;
};

/// The iteration over `result` and the operands, which broadcast to its sizes. A null operand is
/// skipped, and so is one of a single element if the result has more. False if the result overlaps
/// itself or an operand does not broadcast. `outer`: a bit for each operand whose dims are the
/// first ones of the result, where others have the last.
bool iterate(const run::Geometry& result, c10::ArrayRef<const run::Geometry*> operands,
             Iteration& iteration, uint32_t outer = 0);

/// The dims of a tensor that have more than one element, outermost in memory first.
Dims memory_order(const run::Geometry& look);

/// Elements of a *row* that a tensor over the shape is constant in, if it is linear from row to
/// row; 0: there are no such rows.
int64_t constant_run(const Dims& shape, const Dims& strides);
/// Elements of a row, if the tensor is linear within it and every row is the same; 0: not so.
int64_t repeated_run(const Dims& shape, const Dims& strides);

/// float32 for torch's float, and so on; false for a dtype that programs do not know.
bool register_dtype(c10::ScalarType dtype, Type& type);

}  // namespace lazyeng::fuse
