// csrc/fuse/tiles/totals.h: what elements are folded into.
#pragma once

#include <memory>

#include "csrc/fuse/tiles/tile_program.h"

namespace lazyeng::fuse {

/// Writes the total, divided, as one element of the type.
void write_total(char* memory, Type type, const Total& total, double divisor);
/// Whether torch may have found a zero with another sign.
bool is_uncertain(Fold fold, const Total& total);

/// The totals of one reduction, on one thread.
class Totals {
 public:
  /// Of so many elements of this type. `reduction` outlives it.
  Totals(const Reduction& reduction, Type type, int64_t elements);

  /// Adds n elements, from element `first` of the iteration on.
  void fold(const char* in, int64_t first, int64_t n);
  /// To be called after the last fold().
  void finish();
  /// Adds what others have found.
  void add(const Totals& others);
  /// Of a sum in torch's order: what each of these has found, of which there are so many threads.
  void join(const std::vector<const Totals*>& all, int64_t threads);
  /// Of such a sum: where a chain adds its value.
  char* state() { return state_; }
  /// Writes them all, as elements of the type.
  void write(char* memory, Type type) const;
  bool uncertain() const;

 private:
  void fold_run(const char* in, int64_t n, size_t place);
  void fold_columns(const char* in, int64_t rows, int64_t column, int64_t columns, size_t place);
  Total at(size_t place) const;
  void set(size_t place, const Total& total);

  const Reduction& reduction_;
  Type type_;
  // (Integers have no signs of zeros, floats no integers.)
  std::vector<double> real_;
  std::vector<int64_t> integer_;
  std::vector<uint8_t> other_zero_;
  // Of the columns that are side by side, the first of which has its total there: ColumnsKernel
  // says what these are.
  std::vector<char> parts_, zeros_;
  // Of a sum in torch's order.
  std::unique_ptr<char[]> memory_;
  char* state_ = nullptr;
  size_t place_of_parts_ = 0;
  int64_t rows_in_parts_ = 0;  // whole ones
};

}  // namespace lazyeng::fuse
