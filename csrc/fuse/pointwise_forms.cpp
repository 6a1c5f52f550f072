// csrc/fuse/pointwise_forms.cpp: the steps of each pointwise form.
//
// Each op computes as torch's CPU kernel for it does: the operands are cast to the common dtype,
// the kernel runs in that dtype (float32 for float16 and bfloat16, whose result is rounded), and
// the result is cast to the dtype of the tensor that it goes to. Where torch departs from that, the
// form says so.
#include <limits>

#include "csrc/fuse/forms.h"

namespace lazyeng::fuse {
namespace {

Operand unary(Registers& r, Opcode opcode) {
  const c10::ScalarType dtype = r.args().dtype_at(0);
  return r.step(opcode, dtype, {r.as(0, dtype)});
}

Operand unary_float(Registers& r, Opcode opcode) {
  const c10::ScalarType dtype = r.args().float_dtype(r.args().dtype_at(0));
  return r.function(opcode, dtype, r.as(0, dtype));
}

Operand binary(Registers& r, Opcode opcode) {
  const c10::ScalarType dtype = r.args().common_dtype({0, 1});
  const bool exact = opcode == Opcode::mul && r.args().is_single(1);
  return r.step(opcode, dtype, {r.as(0, dtype), r.as(1, dtype, exact)});
}

Operand scaled(Registers& r, Opcode opcode, size_t a, size_t b) {
  const c10::ScalarType dtype = r.args().common_dtype({0, 1});
  if (!r.args().has_number(2)) throw Unfit();
  if (r.args().node().args[2].toScalar().equal(1))
    return r.step(opcode, dtype, {r.as(a, dtype), r.as(b, dtype)});
  if (dtype == c10::kBool || is_narrow(dtype)) throw Unfit();
  const bool negate = opcode == Opcode::sub;
  return r.step(Opcode::add_scaled, dtype,
                {r.as(a, dtype), r.as(b, dtype), r.number(2, dtype, negate)});
}

Operand divide(Registers& r) {
  if (r.args().node().args.size() > 2) throw Unfit();  // a rounding mode
  const c10::ScalarType dtype = r.args().float_dtype(r.args().common_dtype({0, 1}));
  return r.step(Opcode::div, dtype, {r.as(0, dtype), r.as(1, dtype, r.args().is_single(1))});
}

Operand compare(Registers& r, Opcode opcode) {
  const c10::ScalarType dtype = r.args().common_dtype({0, 1});
  const RegisterId a = r.as(0, dtype), b = r.as(1, dtype);
  return {r.builder().step(opcode, register_type(dtype), Type::b8, {a, b}), c10::kBool};
}

Operand logical_not(Registers& r) {
  const c10::ScalarType dtype = r.args().dtype_at(0);
  const RegisterId a = r.as(0, dtype);
  return {r.builder().step(Opcode::logical_not, register_type(dtype), Type::b8, {a}), c10::kBool};
}

Operand is_nan(Registers& r) {
  const c10::ScalarType dtype = r.args().dtype_at(0);
  if (!c10::isFloatingType(dtype)) throw Unfit();
  const RegisterId a = r.as(0, dtype);
  return {r.builder().step(Opcode::ne, register_type(dtype), Type::b8, {a, a}), c10::kBool};
}

Operand select(Registers& r, size_t condition, RegisterId yes, RegisterId no,
               c10::ScalarType dtype) {
  if (r.args().dtype_at(condition) != c10::kBool) throw Unfit();
  const RegisterId mask = r.as(condition, c10::kBool);
  const Type type = register_type(dtype);
  return {r.builder().step(Opcode::select, type, type, {mask, yes, no}), dtype};
}

Operand where(Registers& r) {
  const c10::ScalarType dtype = r.args().common_dtype({1, 2});
  const RegisterId yes = r.as(1, dtype), no = r.as(2, dtype);
  return select(r, 0, yes, no, dtype);
}

Operand masked_fill(Registers& r) {
  const c10::ScalarType dtype = r.args().dtype_at(0);
  if (!r.args().is_single(2)) throw Unfit();
  const RegisterId value = r.as(2, dtype), self = r.as(0, dtype);
  return select(r, 1, value, self, dtype);
}

Operand clamp(Registers& r, Opcode opcode) {
  ResultType type;
  r.args().promote(type, 0);
  for (size_t arg : {1, 2})
    if (r.args().has_number(arg)) r.args().promote(type, arg);
  const c10::ScalarType dtype = type.get();
  const RegisterId self = r.as(0, dtype);
  const bool low = r.args().has_number(1), high = r.args().has_number(2);
  // (Of two zeros the second operand is taken: torch takes self's.)
  if (opcode != Opcode::clamp)
    return r.step(opcode, dtype, {r.number(1, dtype, false, true), self});
  if (low && high) {
    const RegisterId min = r.number(1, dtype, false, true), max = r.number(2, dtype, false, true);
    return r.step(Opcode::clamp, dtype, {self, min, max});
  }
  if (low) return r.step(Opcode::maximum, dtype, {r.number(1, dtype, false, true), self});
  return r.step(Opcode::minimum, dtype, {r.number(2, dtype, false, true), self});
}

Operand with_numbers(Registers& r, Opcode opcode) {
  ResultType type;
  for (size_t arg = 0; arg < r.args().node().args.size(); ++arg)
    if (r.args().tensor_at(arg) >= 0) r.args().promote(type, arg);
  const c10::ScalarType dtype = type.get();
  if (!c10::isFloatingType(dtype)) throw Unfit();
  c10::SmallVector<RegisterId, kMaxInputs> in;
  for (size_t arg = 0; arg < r.args().node().args.size(); ++arg) {
    if (r.args().tensor_at(arg) >= 0)
      in.push_back(r.as(arg, dtype));
    else if (r.args().node().info.args[arg].kind == run::ArgKind::scalar)
      in.push_back(r.number(arg, is_narrow(dtype) ? c10::kFloat : dtype));
  }
  switch (in.size()) {
    case 2:
      return r.step(opcode, dtype, {in[0], in[1]});
    case 3:
      return r.step(opcode, dtype, {in[0], in[1], in[2]});
    case 4:
      return r.step(opcode, dtype, {in[0], in[1], in[2], in[3]});
    default:
      throw Unfit();
  }
}

/// Whether gelu's argument says "tanh"; what is not a known word is the op's own to refuse.
bool approximation(const Registers& r, size_t arg) {
  const auto word = r.args().node().args[arg].toStringView();
  if (word != "tanh" && word != "none") throw Unfit();
  return word == "tanh";
}

Operand gelu(Registers& r) {
  const c10::ScalarType dtype = r.args().float_dtype(r.args().dtype_at(0));
  return r.step(approximation(r, 1) ? Opcode::gelu_tanh : Opcode::gelu, dtype, {r.as(0, dtype)});
}

Operand gelu_backward(Registers& r) {
  const c10::ScalarType dtype = r.args().common_dtype({0, 1});
  if (!c10::isFloatingType(dtype)) throw Unfit();
  return r.step(approximation(r, 2) ? Opcode::gelu_tanh_backward : Opcode::gelu_backward, dtype,
                {r.as(0, dtype), r.as(1, dtype)});
}

Operand power(Registers& r) {
  if (!r.args().has_number(1)) throw Unfit();
  const double exponent = step_exponent(r.args().node().args[1].toScalar());
  const c10::ScalarType dtype = r.args().common_dtype({0, 1});
  const RegisterId x = r.as(0, dtype);
  if (exponent == 2) return r.step(Opcode::square, dtype, {x});
  if (!c10::isFloatingType(dtype)) throw Unfit();
  if (exponent == 0) return r.step(Opcode::copy, dtype, {r.constant(1, dtype)});
  if (exponent == 1) return r.step(Opcode::copy, dtype, {x});
  if (exponent == 0.5) return r.step(Opcode::sqrt, dtype, {x});
  if (exponent == -0.5) return r.step(Opcode::rsqrt, dtype, {x});
  if (exponent == -1) return r.step(Opcode::reciprocal, dtype, {x});
  const bool cube = exponent == 3, inverse_square = exponent == -2;
  if (cube || inverse_square) {
    const Operand square = r.step(Opcode::square, dtype, {x});
    if (cube) return r.step(Opcode::mul, dtype, {square.reg, x});
    return r.step(Opcode::reciprocal, dtype, {square.reg});
  }
  return r.step(Opcode::pow, dtype, {x, r.number(1, is_narrow(dtype) ? c10::kFloat : dtype)});
}

Operand cast(Registers& r) {
  const size_t source = r.args().tensor_at(1) >= 0 ? 1 : 0;
  const c10::ScalarType dtype = r.args().result_look().dtype();
  const RegisterId reg = r.as(source, dtype);
  return {r.builder().step(Opcode::copy, register_type(dtype), register_type(dtype), {reg}), dtype};
}

Operand filled(Registers& r, RegisterId value) {
  const c10::ScalarType dtype = r.args().result_look().dtype();
  return {r.builder().step(Opcode::copy, register_type(dtype), register_type(dtype), {value}),
          dtype};
}

/// Rounded once, as torch's kernel does.
Operand mse_loss_backward(Registers& r) {
  const c10::ScalarType dtype = r.args().common_dtype({0, 1, 2});
  if (!c10::isFloatingType(dtype)) throw Unfit();
  const c10::ScalarType wide = is_narrow(dtype) ? c10::kFloat : dtype;
  const bool mean = r.args().node().args[3].toInt() == 1;
  const auto numel = static_cast<double>(r.args().result_look().numel());
  const Operand difference = r.step(Opcode::sub, wide, {r.as(1, wide), r.as(2, wide)});
  const RegisterId factor = r.constant(mean ? 2 / numel : 2, wide);
  const Operand scaled = r.step(Opcode::mul, wide, {difference.reg, factor});
  const Operand made = r.step(Opcode::mul, wide, {scaled.reg, r.as(0, wide)});
  return {r.round_to(made.reg, dtype), dtype};
}

}  // namespace

double step_exponent(const c10::Scalar& exponent) {
  constexpr double kOfTheirOwn[] = {2, 0, 1, 0.5, -0.5, -1, 3, -2};  // as in torch's kernel
  for (const double known : kOfTheirOwn)
    if (exponent.toDouble() == known) return known;
  return std::numeric_limits<double>::quiet_NaN();
}

Operand lower_pointwise(Registers& r, const OpRule& rule) {
  switch (rule.form) {
    case Form::unary:
      return unary(r, rule.opcode);
    case Form::unary_float:
      return unary_float(r, rule.opcode);
    case Form::binary:
      return binary(r, rule.opcode);
    case Form::binary_scaled:
      return scaled(r, rule.opcode, 0, 1);
    case Form::reversed:
      return scaled(r, rule.opcode, 1, 0);
    case Form::divide:
      return divide(r);
    case Form::compare:
      return compare(r, rule.opcode);
    case Form::logical_not:
      return logical_not(r);
    case Form::is_nan:
      return is_nan(r);
    case Form::where:
      return where(r);
    case Form::masked_fill:
      return masked_fill(r);
    case Form::clamp:
      return clamp(r, rule.opcode);
    case Form::with_numbers:
      return with_numbers(r, rule.opcode);
    case Form::gelu:
      return gelu(r);
    case Form::gelu_backward:
      return gelu_backward(r);
    case Form::power:
      return power(r);
    case Form::cast:
      return cast(r);
    case Form::fill:
      return filled(r, r.number(1, r.args().result_look().dtype()));
    case Form::zero:
      return filled(r, r.constant(0, r.args().result_look().dtype()));
    case Form::one:
      return filled(r, r.constant(1, r.args().result_look().dtype()));
    case Form::mse_loss:  // without a reduction
      return squared_error(r);
    case Form::mse_loss_backward:
      return mse_loss_backward(r);
    default:
      throw Unfit();
  }
}

}  // namespace lazyeng::fuse
