// csrc/fuse/result_type.h: the dtype in which an op computes, by torch's rules of promotion
// (at::result_type), from looks alone.
#pragma once

#include <c10/core/DefaultDtype.h>
#include <c10/core/ScalarType.h>

#include "csrc/run/geometry.h"

namespace lazyeng::fuse {

/// Computed with in float32, and rounded.
inline bool is_narrow(c10::ScalarType dtype) {
  return dtype == c10::kHalf || dtype == c10::kBFloat16;
}

/// What torch's kernels compute in.
inline c10::ScalarType math_dtype(c10::ScalarType dtype) {
  return is_narrow(dtype) ? c10::kFloat : dtype;
}

/// Tensors with dims count more than those without, and those more than Python numbers.
class ResultType {
 public:
  void add(c10::ScalarType dtype, bool zero_dim, bool number) {
    if (number && c10::isFloatingType(dtype)) dtype = c10::get_default_dtype_as_scalartype();
    c10::ScalarType& rank = number ? numbers_ : zero_dim ? zero_dims_ : dims_;
    rank = promote(rank, dtype);
  }
  void add(const run::Geometry& look) {
    add(look.dtype(), look.sizes().empty(), look.data().wrapped_number);
  }
  c10::ScalarType get() const { return combine(dims_, combine(zero_dims_, numbers_)); }

 private:
  static constexpr c10::ScalarType kNothing = c10::ScalarType::Undefined;

  static c10::ScalarType promote(c10::ScalarType a, c10::ScalarType b) {
    return a == kNothing ? b : b == kNothing ? a : c10::promoteTypes(a, b);
  }
  static c10::ScalarType combine(c10::ScalarType higher, c10::ScalarType lower) {
    if (c10::isFloatingType(higher)) return higher;
    if (higher == c10::kBool || c10::isFloatingType(lower)) return promote(higher, lower);
    return higher != kNothing ? higher : lower;
  }

  c10::ScalarType dims_ = kNothing;
  c10::ScalarType zero_dims_ = kNothing;
  c10::ScalarType numbers_ = kNothing;
};

}  // namespace lazyeng::fuse
