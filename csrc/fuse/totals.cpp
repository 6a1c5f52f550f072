// csrc/fuse/totals.cpp: totals of floats in double, of all else in int64.
#include "csrc/fuse/totals.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstring>
#include <limits>

namespace lazyeng::fuse {
namespace {

bool is_real(Type type) { return type >= Type::f32; }

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
    default:
      return {0, 0};
  }
}

void add_total(Fold fold, Type type, const Total& part, Total& total) {
  const auto both = [fold](auto a, auto b) {
    if (fold == Fold::sum) return a + b;
    return b != b || (fold == Fold::maximum ? b > a : b < a) ? b : a;
  };
  if (is_real(type))
    total.real = both(total.real, part.real);
  else
    total.integer = both(total.integer, part.integer);
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

}  // namespace lazyeng::fuse
