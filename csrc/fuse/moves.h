// csrc/fuse/moves.h: between tensors that are not linear and registers.
#pragma once

#include "csrc/fuse/tile_program.h"

namespace lazyeng::fuse {

/// Puts the `n` elements of the iteration from `first` on into the register at `to`: those of a
/// tensor of one element a row as splats, one for each row.
void gather(const Program& program, const TensorAccess& tensor, char* memory, char* to,
            int64_t first, int64_t n);
/// The reverse.
void scatter(const Program& program, const TensorAccess& tensor, char* memory, const char* from,
             int64_t first, int64_t n);

/// Repeats the element at `splat` kLanes times.
void fill_splat(char* splat, size_t item);

}  // namespace lazyeng::fuse
