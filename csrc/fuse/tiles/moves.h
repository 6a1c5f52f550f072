// csrc/fuse/tiles/moves.h: between tensors that are not linear and registers.
#pragma once

#include "csrc/fuse/tiles/tile_program.h"

namespace lazyeng::fuse {

/// Puts the `n` elements of the iteration from `first` on into the register at `to`: those of a
/// tensor of one element a row as splats, one for each row.
void gather(const Program& program, const TensorAccess& tensor, char* memory, char* to,
            int64_t first, int64_t n);
/// The reverse.
void scatter(const Program& program, const TensorAccess& tensor, char* memory, const char* from,
             int64_t first, int64_t n);

/// Gives each element of a tile that of its row, which is the first of `lanes`, or that of a
/// column, of which there are as many as a row has. For short rows.
void spread_rows(const char* from, int64_t lanes, char* to, int64_t row, int64_t rows, size_t item);
void spread_columns(const char* from, char* to, int64_t row, int64_t rows, size_t item);

/// Repeats the element at `splat` so many times.
void fill_splat(char* splat, size_t item, int64_t lanes);

}  // namespace lazyeng::fuse
