// csrc/fuse/tiles/totals.cpp: totals of floats in double, of all else in int64; where each is.
#include "csrc/fuse/tiles/totals.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

namespace lazyeng::fuse {
namespace {

bool is_real(Type type) { return type >= Type::f32; }

/// Both totals as one.
template <class T>
T both(Fold fold, T a, T b) {
  using Word = std::conditional_t<std::is_same_v<T, double>, double, uint64_t>;  // wraps around
  switch (fold) {
    case Fold::sum:
      return static_cast<T>(static_cast<Word>(a) + static_cast<Word>(b));
    case Fold::product:
      return static_cast<T>(static_cast<Word>(a) * static_cast<Word>(b));
    default:
      return b != b || (fold == Fold::maximum ? b > a : b < a) ? b : a;
  }
}

template <class T>
void put(char* memory, T value) {
  std::memcpy(memory, &value, sizeof value);
}

}  // namespace

Total empty_total(Fold fold) {
  using Real = std::numeric_limits<double>;
  using Integer = std::numeric_limits<int64_t>;
  switch (fold) {
    case Fold::maximum:
      return {-Real::infinity(), Integer::min()};
    case Fold::minimum:
      return {Real::infinity(), Integer::max()};
    case Fold::product:
      return {1, 1};
    default:
      return {0, 0};
  }
}

void write_total(char* memory, Type type, const Total& total, double divisor) {
  const double real = total.real / divisor;
  switch (type) {
    case Type::f64:
      return put(memory, real);
    case Type::f32:
      return put(memory, static_cast<float>(real));
    case Type::f16:
      return put(memory, c10::Half(static_cast<float>(real)));
    case Type::bf16:
      return put(memory, c10::BFloat16(static_cast<float>(real)));
    default:  // little end first: the low bytes are the narrower integer
      std::memcpy(memory, &total.integer, size_of(type));
  }
}

bool is_uncertain(Fold fold, const Total& total) {
  return total.other_zero && total.real == 0 && fold != Fold::sum;
}

Totals::Totals(const Reduction& reduction, Type type, int64_t elements)
    : reduction_(reduction), type_(type) {
  const auto n = static_cast<size_t>(reduction.places.totals);
  const Total empty = empty_total(reduction.folding.fold);
  if (is_real(type)) {
    real_.assign(n, empty.real);
    other_zero_.assign(n, 0);
  } else {
    integer_.assign(n, empty.integer);
  }
  if (reduction.sum) {
    constexpr size_t kLine = 64;
    memory_.reset(new char[reduction.sum->bytes + kLine]);
    state_ = memory_.get() + (kLine - reinterpret_cast<uintptr_t>(memory_.get()) % kLine) % kLine;
    reduction.sum->begin(state_, elements);
  }
  const Places& places = reduction.places;
  if (places.totals == 1 || places.strides.back() == 0) return;
  const ColumnsKernel& kernel = reduction.folding.columns;
  const auto columns = static_cast<size_t>(places.shape.back());
  parts_.resize(columns * kernel.item);
  kernel.clear(parts_.data(), places.shape.back());
  if (is_real(type) && reduction.folding.fold != Fold::sum) zeros_.resize(columns * kernel.item);
}

Total Totals::at(size_t place) const {
  if (!is_real(type_)) return {0, integer_[place]};
  return {real_[place], 0, other_zero_[place] != 0};
}

void Totals::set(size_t place, const Total& total) {
  if (!is_real(type_)) {
    integer_[place] = total.integer;
  } else {
    real_[place] = total.real;
    other_zero_[place] = total.other_zero;
  }
}

void Totals::fold_run(const char* in, int64_t n, size_t place) {
  Total total = at(place);
  reduction_.folding.kernel(in, n, total);
  set(place, total);
}

/// `place`: of the first of the row's columns.
void Totals::fold_columns(const char* in, int64_t rows, int64_t column, int64_t columns,
                          size_t place) {
  const ColumnsKernel& kernel = reduction_.folding.columns;
  const bool whole = column + columns == reduction_.places.shape.back();
  if (place != place_of_parts_) finish();
  place_of_parts_ = place;
  const size_t at = static_cast<size_t>(column) * kernel.item;
  while (rows > 0) {
    const int64_t n = std::min(rows, kernel.rows - rows_in_parts_);
    kernel.add(in, n, columns, parts_.data() + at, zeros_.empty() ? nullptr : zeros_.data() + at);
    in += n * columns * static_cast<int64_t>(size_of(type_));
    rows -= n;
    rows_in_parts_ += whole ? n : 0;
    if (rows_in_parts_ == kernel.rows) finish();
  }
}

namespace {

double as_double(const char* number, Type type) {
  if (type == Type::f64) return *reinterpret_cast<const double*>(number);
  return static_cast<double>(*reinterpret_cast<const float*>(number));
}

}  // namespace

void Totals::join(const std::vector<const Totals*>& all, int64_t threads) {
  std::vector<double> sums;  // or of as many floats
  sums.resize(static_cast<size_t>(std::max<int64_t>(threads, static_cast<int64_t>(all.size()))));
  char* const memory = reinterpret_cast<char*>(sums.data());
  for (size_t i = 0; i < all.size(); ++i)
    if (type_ == Type::f64)
      sums[i] = all[i]->real_[0];
    else
      put(memory + i * sizeof(float), static_cast<float>(all[i]->real_[0]));
  double sum = 0;
  reduction_.sum->join(memory, static_cast<int64_t>(sums.size()), reinterpret_cast<char*>(&sum));
  real_[0] = as_double(reinterpret_cast<const char*>(&sum), type_);
}

void Totals::finish() {
  if (reduction_.sum) {
    double sum = 0;
    reduction_.sum->finish(state_, reinterpret_cast<char*>(&sum));
    real_[0] = as_double(reinterpret_cast<const char*>(&sum), type_);
    return;
  }
  if (parts_.empty()) return;
  const ColumnsKernel& kernel = reduction_.folding.columns;
  const int64_t n = reduction_.places.shape.back();
  const ColumnTotals totals{real_.data() + place_of_parts_, integer_.data() + place_of_parts_,
                            other_zero_.data() + place_of_parts_};
  kernel.add_to_totals(parts_.data(), zeros_.data(), n, totals);
  kernel.clear(parts_.data(), n);
  std::fill(zeros_.begin(), zeros_.end(), 0);
  rows_in_parts_ = 0;
}

void Totals::fold(const char* in, int64_t first, int64_t n) {
  const Dims& shape = reduction_.places.shape;
  const Dims& strides = reduction_.places.strides;
  if (reduction_.sum) return reduction_.sum->add(state_, in, n);
  if (reduction_.places.totals == 1) return fold_run(in, n, 0);
  const size_t inner = shape.size() - 1;
  while (n > 0) {
    const int64_t column = first % shape[inner];
    int64_t place = 0, rest = first / shape[inner], above = 0;  // (the index in the dim above)
    for (size_t d = inner; d-- > 0; rest /= shape[d]) {
      place += rest % shape[d] * strides[d];
      if (d + 1 == inner) above = rest % shape[d];
    }
    int64_t columns = std::min(n, shape[inner] - column), rows = 1;
    if (strides[inner] == 0) {
      fold_run(in, columns, static_cast<size_t>(place));
    } else {
      if (columns == shape[inner] && inner > 0 && strides[inner - 1] == 0)
        rows = std::min(n / columns, shape[inner - 1] - above);
      fold_columns(in, rows, column, columns, static_cast<size_t>(place));
    }
    first += rows * columns;
    n -= rows * columns;
    in += rows * columns * static_cast<int64_t>(size_of(type_));
  }
}

void Totals::add(const Totals& others) {
  const Fold fold = reduction_.folding.fold;
  for (size_t i = 0; i < real_.size(); ++i) {
    real_[i] = both(fold, real_[i], others.real_[i]);
    other_zero_[i] |= others.other_zero_[i];
  }
  for (size_t i = 0; i < integer_.size(); ++i)
    integer_[i] = both(fold, integer_[i], others.integer_[i]);
}

void Totals::write(char* memory, Type type) const {
  const auto n = static_cast<size_t>(reduction_.places.totals);
  for (size_t i = 0; i < n; ++i, memory += size_of(type))
    write_total(memory, type, at(i), reduction_.folding.divisor);
}

bool Totals::uncertain() const {
  for (size_t i = 0; i < real_.size(); ++i)
    if (other_zero_[i] && is_uncertain(reduction_.folding.fold, at(i))) return true;
  return false;
}

}  // namespace lazyeng::fuse
