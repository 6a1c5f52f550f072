// csrc/fuse/tiles/picked_sum.h: the sum over all rows of the element that each row's target names
// (nll_loss).
//
// torch adds these one row after another, on one thread. Tiles run in any order and on any thread;
// but each thread has rows that follow one another. So a thread keeps what it has picked, and all
// of it is added up when the last tile is done: one element for each row that was read.
#pragma once

#include <memory>

#include "csrc/fuse/tiles/tile_program.h"

namespace lazyeng::fuse {

/// Rows in memory, and what belongs to them.
struct RowsToPick {
  const char* elements;
  int64_t row;             ///< elements of each
  const int64_t* targets;  ///< one for each
  const char* weights;     ///< of the places in a row; null: there are none
  int64_t weight_step;     ///< elements from one to the next
};

/// What one thread has picked, all of one type.
class PickedRows {
 public:
  /// Of so many rows at most. Throws std::bad_alloc, as nothing else here does.
  PickedRows(Type type, int64_t rows, bool weighted);

  /// So many rows more. False: a target names no place.
  bool pick(const RowsToPick& from, int64_t rows, int64_t ignored);

  /// Writes the loss and the weight of all rows, which threads have in this order.
  static void write_sum(const PickedSum& sum, const std::vector<PickedRows*>& threads,
                        const std::vector<char*>& tensors);

 private:
  template <class T>
  bool pick_of(const RowsToPick& from, int64_t rows, int64_t ignored);
  template <class T>
  static void write(const PickedSum& sum, const std::vector<PickedRows*>& threads,
                    const std::vector<char*>& tensors);

  const Type type_;
  int64_t rows_ = 0;
  std::unique_ptr<char[]> picked_, weights_;
};

}  // namespace lazyeng::fuse
