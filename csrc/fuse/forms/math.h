// csrc/fuse/forms/math.h: steps of one type, without rounding in between, as torch's kernels
// compute what they round only once.
#pragma once

#include "csrc/fuse/forms/registers.h"
#include "csrc/fuse/op_table.h"

namespace lazyeng::fuse {

/// Steps of one type, without rounding in between.
class Math {
 public:
  Math(Registers& r, c10::ScalarType dtype)
      : r_(r), dtype_(math_dtype(dtype)), type_(register_type(dtype)) {
    if (!c10::isFloatingType(dtype)) throw Unfit();
  }

  c10::ScalarType dtype() const { return dtype_; }
  RegisterId argument(size_t arg) const { return r_.as(arg, dtype_); }
  RegisterId number(double value) const { return r_.constant(value, dtype_); }
  RegisterId number_of(size_t arg) const { return r_.number(arg, dtype_); }
  /// `of` less the argument.
  RegisterId rest(double of, size_t arg) const {
    return r_.number(arg, dtype_, /*negate=*/true, /*no_nan=*/false, /*plus=*/of);
  }
  RegisterId operator()(Opcode opcode, RegisterId a) const {
    return r_.builder().step(opcode, type_, type_, {a});
  }
  RegisterId operator()(Opcode opcode, RegisterId a, RegisterId b) const {
    return r_.builder().step(opcode, type_, type_, {a, b});
  }
  RegisterId operator()(Opcode opcode, RegisterId a, RegisterId b, RegisterId c) const {
    return r_.builder().step(opcode, type_, type_, {a, b, c});
  }
  RegisterId operator()(Opcode opcode, RegisterId a, RegisterId b, RegisterId c,
                        RegisterId d) const {
    return r_.builder().step(opcode, type_, type_, {a, b, c, d});
  }
  RegisterId test(Opcode opcode, RegisterId a, RegisterId b) const {
    return r_.builder().step(opcode, type_, Type::b8, {a, b});
  }
  RegisterId select(RegisterId mask, RegisterId yes, RegisterId no) const {
    return r_.builder().step(Opcode::select, type_, type_, {mask, yes, no});
  }
  RegisterId fold(RegisterId reg, Fold fold, double divisor = 1) const {
    return r_.builder().fold_rows(reg, fold, divisor, type_);
  }
  /// The result, rounded to the dtype.
  Operand rounded(RegisterId reg, c10::ScalarType dtype) const {
    return {r_.round_to(reg, dtype), dtype};
  }
  void set_result(RegisterId reg, Rate rate, size_t index = 0) const {
    const int16_t value = r_.args().member().results[index];
    r_.set_result(r_.convert({reg, dtype_}, r_.args().look_of(value).dtype()), rate, index);
  }

 private:
  Registers& r_;
  const c10::ScalarType dtype_;
  const Type type_;
};

}  // namespace lazyeng::fuse
