// csrc/fuse/forms/pointwise_forms.cpp: the steps of each pointwise form.
//
// Each op computes as torch's CPU kernel for it does: the operands are cast to the common dtype,
// the kernel runs in that dtype (float32 for float16 and bfloat16, whose result is rounded), and
// the result is cast to the dtype of the tensor that it goes to. Where torch departs from that, the
// form says so.
#include <cmath>
#include <limits>

#include "csrc/fuse/forms/forms.h"
#include "csrc/fuse/forms/math.h"

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
  const run::Node& node = r.args().node();
  // (The number is torch's first operand in `mul_.Scalar`, where its kernel for the CPU rounds it.)
  const bool comes_first = node.info.writes && node.args[1].isScalar() && node.device.is_cpu();
  const bool exact = opcode == Opcode::mul && r.args().is_single(1) && !comes_first;
  return r.step(opcode, dtype, {r.as(0, dtype), r.as(1, dtype, exact)});
}

Operand scaled(Registers& r, Opcode opcode, size_t a, size_t b) {
  const c10::ScalarType dtype = r.args().common_dtype({0, 1});
  if (!r.args().has_number(2)) throw Unfit();
  if (r.args().node().args[2].toScalar().equal(1))
    return r.step(opcode, dtype, {r.as(a, dtype), r.as(b, dtype)});
  // (Of narrow dtypes torch rounds the product in some loops, and in others does not.)
  if (dtype == c10::kBool || is_narrow(dtype)) throw Unfit();
  const bool negate = opcode == Opcode::sub;
  return r.step(Opcode::add_scaled, dtype,
                {r.as(a, dtype), r.as(b, dtype), r.number(2, dtype, negate)});
}

/// Of numbers the dtype that torch makes tensors of.
Operand binary_float(Registers& r, Opcode opcode) {
  const c10::ScalarType dtype = r.args().float_dtype(r.args().common_dtype({0, 1}));
  return r.step(opcode, dtype, {r.as(0, dtype), r.as(1, dtype)});
}

Operand divide(Registers& r) {
  const c10::ScalarType dtype = r.args().float_dtype(r.args().common_dtype({0, 1}));
  return r.step(Opcode::div, dtype, {r.as(0, dtype), r.as(1, dtype, r.args().is_single(1))});
}

/// Of integers without a detour; what is narrow and divided by a number is rounded only at the end.
Operand floor_divide(Registers& r) {
  const c10::ScalarType dtype = r.args().common_dtype({0, 1});
  return r.step(Opcode::floor_divide, dtype,
                {r.as(0, dtype), r.as(1, dtype, r.args().is_single(1))});
}

Operand divide_to_zero(Registers& r) {
  const c10::ScalarType dtype = r.args().common_dtype({0, 1});
  if (!c10::isFloatingType(dtype))
    return r.step(Opcode::trunc_divide, dtype, {r.as(0, dtype), r.as(1, dtype)});
  const bool single = r.args().is_single(1);
  const Math math(r, dtype);
  const RegisterId ratio = math(Opcode::div, r.as(0, dtype), r.as(1, dtype, single));
  const RegisterId whole = math(Opcode::trunc, single ? ratio : r.round_to(ratio, dtype));
  return math.rounded(whole, dtype);
}

Operand divide_rounded(Registers& r) {
  switch (rounding_of(r.args().node())) {
    case Rounding::none:
      return divide(r);
    case Rounding::down:
      return floor_divide(r);
    default:
      return divide_to_zero(r);
  }
}

Operand compare(Registers& r, Opcode opcode) {
  const c10::ScalarType dtype = r.args().common_dtype({0, 1});
  const RegisterId a = r.as(0, dtype), b = r.as(1, dtype);
  return {r.builder().step(opcode, register_type(dtype), Type::b8, {a, b}), c10::kBool};
}

Operand unary_to_bool(Registers& r, Opcode opcode) {
  const c10::ScalarType dtype = r.args().dtype_at(0);
  const RegisterId a = r.as(0, dtype);
  return {r.builder().step(opcode, register_type(dtype), Type::b8, {a}), c10::kBool};
}

Operand is_nan(Registers& r) {
  const c10::ScalarType dtype = r.args().dtype_at(0);
  const RegisterId a = r.as(0, dtype);
  return {r.builder().step(Opcode::ne, register_type(dtype), Type::b8, {a, a}), c10::kBool};
}

Operand is_infinite(Registers& r, Opcode opcode) {
  const c10::ScalarType dtype = r.args().dtype_at(0);
  if (!c10::isFloatingType(dtype))
    return {r.builder().step(Opcode::copy, Type::b8, Type::b8, {r.constant(0, c10::kBool)}),
            c10::kBool};
  const Type type = register_type(dtype);
  const RegisterId x = r.step(opcode, dtype, {r.as(0, dtype)}).reg;
  const RegisterId infinity = r.constant(std::numeric_limits<double>::infinity(), dtype);
  return {r.builder().step(Opcode::eq, type, Type::b8, {x, infinity}), c10::kBool};
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
  const RegisterId value = r.item(2, dtype), self = r.as(0, dtype);
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

/// In the common dtype of all that are given.
Operand clamp_tensors(Registers& r) {
  ResultType type;
  for (const size_t arg : {0, 1, 2})
    if (r.args().is_given(arg)) r.args().promote(type, arg);
  const c10::ScalarType dtype = type.get();
  Operand made{r.as(0, dtype), dtype};
  if (r.args().is_given(1)) made = r.step(Opcode::maximum, dtype, {made.reg, r.as(1, dtype)});
  if (r.args().is_given(2)) made = r.step(Opcode::minimum, dtype, {made.reg, r.as(2, dtype)});
  return made;
}

/// What is not above the threshold, which is not rounded to narrow floats, is the value.
Operand threshold(Registers& r) {
  const c10::ScalarType dtype = r.args().dtype_at(0);
  const Type type = register_type(dtype);
  const RegisterId x = r.as(0, dtype);
  const RegisterId limit = r.number(1, math_dtype(dtype));
  const RegisterId low = r.builder().step(Opcode::le, type, Type::b8, {x, limit});
  return {r.builder().step(Opcode::select, type, type, {low, r.number(2, dtype), x}), dtype};
}

template <class T>
double extreme(bool least) {
  using Limits = std::numeric_limits<T>;
  return static_cast<double>(least ? Limits::lowest() : Limits::max());
}

double extreme(c10::ScalarType dtype, bool least) {
  switch (dtype) {
    case c10::kHalf:
      return extreme<c10::Half>(least);
    case c10::kBFloat16:
      return extreme<c10::BFloat16>(least);
    case c10::kFloat:
      return extreme<float>(least);
    default:
      return extreme<double>(least);
  }
}

Operand nan_to_num(Registers& r) {
  const c10::ScalarType dtype = r.args().dtype_at(0);
  if (!c10::isFloatingType(dtype)) return r.step(Opcode::copy, dtype, {r.as(0, dtype)});
  const auto given = [&](size_t arg, double otherwise) {
    const c10::IValue& value = r.args().node().args[arg];
    return r.constant(value.isNone() ? otherwise : value.toDouble(), dtype);
  };
  return r.step(Opcode::nan_to_num, dtype,
                {r.as(0, dtype), given(1, 0), given(2, extreme(dtype, false)),
                 given(3, extreme(dtype, true))});
}

Operand scaled_by(Registers& r, double factor) {
  const c10::ScalarType dtype = r.args().float_dtype(r.args().dtype_at(0));
  const RegisterId number = r.constant(factor, math_dtype(dtype));
  return r.step(Opcode::mul, dtype, {r.as(0, dtype), number});
}

Operand hardshrink(Registers& r) {
  const c10::ScalarType dtype = r.args().dtype_at(0);
  const RegisterId x = r.as(0, dtype);
  return r.step(Opcode::shrink, dtype, {x, x, r.number(1, dtype)});
}

Operand celu(Registers& r) {
  const c10::ScalarType dtype = r.args().dtype_at(0);
  const Math math(r, dtype);
  const RegisterId one = math.number(1), inverse = r.inverse_number(1, math.dtype());
  return math.rounded(math(Opcode::elu, math.argument(0), math.number_of(1), one, inverse), dtype);
}

Operand elu_backward(Registers& r) {
  const c10::ScalarType dtype = r.args().common_dtype({0, 5});
  const Math math(r, dtype);
  const bool of_result = r.args().node().args[4].toBool();
  const RegisterId slope =
      math(of_result ? Opcode::elu_slope_of_result : Opcode::elu_slope, math.argument(5),
           math.number_of(1), math.number_of(2), math.number_of(3));
  return math.rounded(math(Opcode::mul, math.argument(0), slope), dtype);
}

/// The second result is exp(-|x|), as torch's CPU kernel keeps it for the gradient.
Operand log_sigmoid(Registers& r) {
  const c10::ScalarType dtype = r.args().dtype_at(0);
  const Math math(r, dtype);
  const RegisterId x = math.argument(0);
  const RegisterId kept = math(Opcode::exp, math(Opcode::neg, math(Opcode::abs, x)));
  math.set_result(kept, r.rate(), 1);
  return math.rounded(math(Opcode::log_sigmoid, x), dtype);
}

Operand prelu_backward(Registers& r) {
  const c10::ScalarType dtype = r.args().common_dtype({0, 1, 2});
  const Math math(r, dtype);
  const RegisterId grad = math.argument(0), x = math.argument(1), zero = math.number(0);
  const RegisterId positive = math.test(Opcode::gt, x, zero);
  math.set_result(math.select(positive, zero, math(Opcode::mul, x, grad)), r.rate(), 1);
  return math.rounded(math(Opcode::leaky_relu_backward, grad, x, math.argument(2)), dtype);
}

Operand logit(Registers& r) {
  const c10::ScalarType dtype = r.args().float_dtype(r.args().dtype_at(0));
  RegisterId x = r.as(0, dtype);
  if (const c10::IValue& eps = r.args().node().args[1]; !eps.isNone()) {
    const RegisterId low = r.constant(eps.toDouble(), dtype);
    const RegisterId high = r.step(Opcode::sub, dtype, {r.constant(1, dtype), low}).reg;
    x = r.step(Opcode::clamp, dtype, {x, low, high}).reg;
  }
  const RegisterId rest = r.step(Opcode::sub, dtype, {r.constant(1, dtype), x}).reg;
  return r.step(Opcode::log, dtype, {r.step(Opcode::div, dtype, {x, rest}).reg});
}

Operand dropout_backward(Registers& r) {
  const c10::ScalarType dtype = r.args().dtype_at(0);
  if (!c10::isFloatingType(dtype) || r.args().dtype_at(1) != c10::kBool) throw Unfit();
  const RegisterId factor = r.constant(r.args().node().args[2].toDouble(), math_dtype(dtype));
  const RegisterId kept = r.step(Opcode::mul, dtype, {r.as(0, dtype), r.as(1, dtype)}).reg;
  return r.step(Opcode::mul, dtype, {kept, factor});
}

Operand with_numbers(Registers& r, Opcode opcode) {
  ResultType type;
  for (size_t arg = 0; arg < r.args().node().args.size(); ++arg)
    if (r.args().tensor_at(arg) >= 0) r.args().promote(type, arg);
  const c10::ScalarType dtype = type.get();
  const bool of_integers = opcode == Opcode::addcmul || opcode == Opcode::pow;
  if (!c10::isFloatingType(dtype) && !of_integers) throw Unfit();
  c10::SmallVector<RegisterId, kMaxInputs> in;
  for (size_t arg = 0; arg < r.args().node().args.size(); ++arg) {
    if (r.args().tensor_at(arg) >= 0)
      in.push_back(r.as(arg, dtype));
    else if (r.args().node().info.args[arg].kind == run::ArgKind::scalar)
      in.push_back(r.number(arg, math_dtype(dtype)));
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
  if (!c10::isFloatingType(dtype)) return r.step(Opcode::pow, dtype, {x, r.number(1, dtype)});
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
  return r.step(Opcode::pow, dtype, {x, r.number(1, math_dtype(dtype))});
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
    case Form::binary_float:
      return binary_float(r, rule.opcode);
    case Form::divide:
      return divide(r);
    case Form::divide_rounded:
      return divide_rounded(r);
    case Form::floor_divide:
      return floor_divide(r);
    case Form::compare:
      return compare(r, rule.opcode);
    case Form::unary_to_bool:
      return unary_to_bool(r, rule.opcode);
    case Form::is_nan:
      return is_nan(r);
    case Form::is_infinite:
      return is_infinite(r, rule.opcode);
    case Form::where:
      return where(r);
    case Form::masked_fill:
      return masked_fill(r);
    case Form::clamp:
      return clamp(r, rule.opcode);
    case Form::clamp_tensors:
      return clamp_tensors(r);
    case Form::clamp_tensor:
      return binary(r, rule.opcode);
    case Form::threshold:
      return threshold(r);
    case Form::nan_to_num:
      return nan_to_num(r);
    case Form::to_radians:
      return scaled_by(r, M_PI / 180);
    case Form::to_degrees:
      return scaled_by(r, 180 / M_PI);
    case Form::hardshrink:
      return hardshrink(r);
    case Form::celu:
      return celu(r);
    case Form::elu_backward:
      return elu_backward(r);
    case Form::log_sigmoid:
      return log_sigmoid(r);
    case Form::prelu_backward:
      return prelu_backward(r);
    case Form::logit:
      return logit(r);
    case Form::dropout_backward:
      return dropout_backward(r);
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
    case Form::loss:
      return lower_loss(r, rule);
    case Form::mse_loss_backward:
    case Form::loss_backward:
      return lower_loss_backward(r, rule);
    default:
      throw Unfit();
  }
}

}  // namespace lazyeng::fuse
