// csrc/fuse/forms/row_forms.cpp: reductions, and what is made of reductions along rows.
//
// As torch's own kernels do, these compute in float32 for float16 and bfloat16, and round only what
// they return.
#include <ATen/core/Reduction.h>

#include <cmath>
#include <limits>

#include "csrc/fuse/bits/exact_rows.h"
#include "csrc/fuse/forms/forms.h"
#include "csrc/fuse/forms/math.h"

namespace lazyeng::fuse {
namespace {

Fold fold_of(Form form) {
  switch (form) {
    case Form::product:
      return Fold::product;
    case Form::maximum:
    case Form::any:
      return Fold::maximum;
    case Form::minimum:
    case Form::all:
      return Fold::minimum;
    default:
      return Fold::sum;
  }
}

/// What is folded: integers as they are, since they are added up in int64 in any case.
RegisterId folded_argument(Registers& r, Form form) {
  const c10::ScalarType dtype = r.args().result_look().dtype(), own = r.args().dtype_at(0);
  if (form == Form::any || form == Form::all) return r.as(0, c10::kBool);
  const bool integers = c10::isIntegralType(dtype, true) && c10::isIntegralType(own, true);
  return r.as(0, integers ? own : dtype);
}

void lower_plain_fold(Registers& r, Form form, int64_t row) {
  const c10::ScalarType dtype = r.args().result_look().dtype();
  const double divisor = form == Form::mean ? static_cast<double>(row) : 1;
  const RegisterId reg =
      r.builder().fold_rows(folded_argument(r, form), fold_of(form), divisor, register_type(dtype));
  r.set_result(r.round_to(reg, dtype), Rate::row);
}

struct Exponentials {
  RegisterId shifted;  ///< x less the row's maximum
  RegisterId each;     ///< exp of it
  RegisterId sum;      ///< of the row
};

/// `exp`: torch's softmax takes a faster one than its exp.
Exponentials exponentials(const Math& math, RegisterId x, RegisterId maximum, Opcode exp) {
  const RegisterId shifted = math(Opcode::sub, x, maximum);
  const RegisterId each = math(exp, shifted);
  return {shifted, each, math.fold(each, Fold::sum)};
}

void lower_softmax(Registers& r, bool log) {
  const Math math(r, r.args().dtype_at(0));
  const RegisterId x = math.argument(0);
  const Exponentials e = exponentials(math, x, math.fold(x, Fold::maximum), Opcode::exp_u20);
  math.set_result(log ? math(Opcode::sub, e.shifted, math(Opcode::log, e.sum))
                      : math(Opcode::mul, e.each, math(Opcode::reciprocal, e.sum)),
                  Rate::element);
}

void refuse_half_to_float(const Registers& r, Form form) {
  const bool softmax = form == Form::softmax || form == Form::log_softmax;
  if (softmax && r.args().node().args[2].toBool()) throw Unfit();
}

void lower_softmax_backward(Registers& r, bool log) {
  const Math math(r, r.args().dtype_at(0));
  const RegisterId grad = math.argument(0), output = math.argument(1);
  if (log) {
    const RegisterId total = math.fold(grad, Fold::sum);
    const RegisterId part = math(Opcode::mul, math(Opcode::exp, output), total);
    return math.set_result(math(Opcode::sub, grad, part), Rate::element);
  }
  const RegisterId total = math.fold(math(Opcode::mul, grad, output), Fold::sum);
  math.set_result(math(Opcode::mul, math(Opcode::sub, grad, total), output), Rate::element);
}

void lower_nll_loss(Registers& r) {
  const c10::ScalarType dtype = r.args().dtype_at(0);
  const auto& args = r.args().node().args;
  if (r.args().result_look().dtype() != dtype) throw Unfit();
  PickedSum sum;
  sum.ignored = args[4].toInt();
  sum.mean = args[3].toInt() == at::Reduction::Mean;
  sum.rows = r.as(0, dtype);
  if (r.args().is_given(2)) {
    if (r.args().dtype_at(2) != dtype) throw Unfit();
    sum.weights = r.as(2, dtype);
  }
  r.set_picked_sum(sum, r.as(1, c10::kLong));
}

/// Of the mean, too, the number is one for all rows.
RegisterId grad_of_rows(Registers& r, c10::ScalarType dtype) {
  r.builder().set_rate(Rate::row);
  const int64_t reduction = r.args().node().args[4].toInt();
  RegisterId grad = r.as(0, dtype);
  if (reduction == at::Reduction::Mean)
    grad = r.step(Opcode::div, dtype, {grad, r.as(6, dtype)}).reg;
  grad = r.step(Opcode::neg, dtype, {grad}).reg;
  r.builder().set_rate(r.rate());
  return grad;
}

void lower_nll_loss_backward(Registers& r) {
  const c10::ScalarType dtype = r.args().result_look().dtype();
  std::optional<RegisterId> weights;
  for (const size_t arg : {0, 1, 6})
    if (r.args().dtype_at(arg) != dtype) throw Unfit();
  if (r.args().is_given(3)) {
    if (r.args().dtype_at(3) != dtype) throw Unfit();
    weights = r.as(3, dtype);
  }
  const RegisterId made = r.builder().one_hot(grad_of_rows(r, dtype), r.as(2, c10::kLong), weights,
                                              r.args().node().args[5].toInt());
  r.set_result(weights ? r.round_to(made, dtype) : made, Rate::element);
}

/// The maximum is taken out of the exponents unless it is infinite.
void lower_logsumexp(Registers& r) {
  const Math math(r, r.args().float_dtype(r.args().dtype_at(0)));
  const RegisterId x = math.argument(0), maximum = math.fold(x, Fold::maximum);
  const RegisterId infinity = math.number(std::numeric_limits<double>::infinity());
  const RegisterId infinite = math.test(Opcode::eq, math(Opcode::abs, maximum), infinity);
  const RegisterId shift = math.select(infinite, math.number(0), maximum);
  const RegisterId log = math(Opcode::log, exponentials(math, x, shift, Opcode::exp).sum);
  math.set_result(math(Opcode::add, log, shift), Rate::row);
}

struct Moments {
  RegisterId mean;
  RegisterId centered;  ///< x less the mean
  RegisterId variance;  ///< times n / divisor
};

/// In two passes. What the rounded mean is off is taken out of the sum of squares.
Moments moments(const Math& math, RegisterId x, int64_t row, double divisor) {
  const auto n = static_cast<double>(row);
  const RegisterId mean = math.fold(x, Fold::sum, n);
  const RegisterId centered = math(Opcode::sub, x, mean);
  const RegisterId squares = math.fold(math(Opcode::square, centered), Fold::sum, divisor);
  const RegisterId off = math.fold(centered, Fold::sum, std::sqrt(n * divisor));
  const RegisterId variance = math(Opcode::sub, squares, math(Opcode::square, off));
  return {mean, centered, math(Opcode::maximum, variance, math.number(0))};  // (a NaN stays one)
}

void lower_variance(Registers& r, const OpRule& rule, int64_t row) {
  const Math math(r, r.args().dtype_at(0));
  const auto n = static_cast<double>(row);
  const bool given = r.args().has_number(2);
  if (given && !leaves_freedom(r.args().node().args[2].toScalar())) throw Unfit();
  const Moments m = moments(math, math.argument(0), row, given ? 1 : n - 1);
  RegisterId variance = m.variance;
  if (given) variance = math(Opcode::div, variance, math.rest(n, 2));
  const bool root = rule.opcode == Opcode::sqrt;
  math.set_result(root ? math(Opcode::sqrt, variance) : variance, Rate::row);
  if (rule.form == Form::variance_and_mean) math.set_result(m.mean, Rate::row, 1);
}

void lower_layer_norm(Registers& r, int64_t row) {
  const Math math(r, r.args().dtype_at(0));
  const Moments m = moments(math, math.argument(0), row, static_cast<double>(row));
  const RegisterId eps = math.number_of(4);
  const RegisterId rstd = math(Opcode::rsqrt, math(Opcode::add, m.variance, eps));
  RegisterId y = math(Opcode::mul, m.centered, rstd);
  if (r.args().is_given(2)) y = math(Opcode::mul, y, math.argument(2));
  if (r.args().is_given(3)) y = math(Opcode::add, y, math.argument(3));
  math.set_result(y, Rate::element);
  math.set_result(m.mean, Rate::row, 1);
  math.set_result(rstd, Rate::row, 2);
}

/// What the standardised elements take from a gradient is taken out of it: the mean, and the part
/// along them.
void lower_layer_norm_backward(Registers& r, const Extent& extent) {
  const Math math(r, r.args().dtype_at(1));
  const auto n = static_cast<double>(extent.row);
  const auto is_made = [&](size_t result) { return r.args().member().results[result] != kNone; };
  const RegisterId grad = math.argument(0), rstd = math.argument(4);
  const RegisterId x =
      math(Opcode::mul, math(Opcode::sub, math.argument(1), math.argument(3)), rstd);
  if (is_made(0)) {
    const RegisterId dy = r.args().is_given(5) ? math(Opcode::mul, grad, math.argument(5)) : grad;
    const RegisterId mean = math.fold(dy, Fold::sum, n);
    const RegisterId along = math.fold(math(Opcode::mul, dy, x), Fold::sum, n);
    const RegisterId rest =
        math(Opcode::sub, math(Opcode::sub, dy, mean), math(Opcode::mul, x, along));
    math.set_result(math(Opcode::mul, rest, rstd), Rate::element);
  }
  if (is_made(1)) r.set_fold(math(Opcode::mul, grad, x), Fold::sum, 1, extent.places, 1);
  if (is_made(2)) r.set_fold(grad, Fold::sum, 1, extent.places, 2);
}

}  // namespace

// (Rows have 32 elements and more where this is asked; of less freedom torch warns.)
bool leaves_freedom(const c10::Scalar& correction) { return correction.toDouble() < 32; }

namespace {

/// Torch's shares of the elements are no whole rows. (Without other bits the partition keeps them
/// apart.)
bool takes_exact_sum(const Registers& r, const OpRule& rule, c10::ScalarType dtype) {
  return r.args().node().device.is_cpu() && !r.has_rows() && has_exact_sum(rule.form, dtype);
}

/// Torch divides by a number of the dtype that it adds in.
double as_number(double value, c10::ScalarType dtype) {
  return dtype == c10::kDouble ? value : static_cast<double>(static_cast<float>(value));
}

/// To one element, of floats.
void lower_exact_sum(Registers& r, const OpRule& rule, const Extent& extent) {
  const c10::ScalarType dtype = r.args().result_look().dtype();
  const double folded = as_number(static_cast<double>(extent.elements->numel()), dtype);
  const bool loss = rule.form == Form::mse_loss;
  const bool mean = loss ? r.args().node().args[2].toInt() == 1 : rule.form == Form::mean;
  const Operand elements = loss ? lower_loss(r, rule) : Operand{r.as(0, dtype), dtype};
  if (elements.dtype != dtype) throw Unfit();
  // (For a mean of a narrow dtype torch widens all elements first.)
  const Type sum_of = mean ? register_type(dtype) : memory_type(dtype);
  r.set_fold(elements.reg, Fold::sum, mean ? folded : 1, extent.places, 0, sum_of);
}

}  // namespace

void lower_fold(Registers& r, const OpRule& rule, const Extent& extent) {
  const c10::ScalarType dtype = r.args().result_look().dtype();
  if (extent.places.totals == 1 && takes_exact_sum(r, rule, dtype))
    return lower_exact_sum(r, rule, extent);
  const auto folded = static_cast<double>(extent.elements->numel() / extent.places.totals);
  if (is_loss(rule.form)) {
    const Operand error = lower_loss(r, rule);
    if (error.dtype != dtype) throw Unfit();
    return r.set_fold(error.reg, Fold::sum, takes_mean(r) ? folded : 1, extent.places);
  }
  r.set_fold(folded_argument(r, rule.form), fold_of(rule.form),
             rule.form == Form::mean ? folded : 1, extent.places);
}

namespace {

void lower_exact_rows(Registers& r, const OpRule& rule, const Extent& extent) {
  refuse_half_to_float(r, rule.form);
  const c10::ScalarType dtype = r.args().result_look().dtype();
  RowArguments args;
  args.row = extent.row;
  args.inner = extent.inner;
  args.order_of = memory_type(dtype);
  const c10::ScalarType wide = math_dtype(dtype);
  args.number = [&r, wide](double value) { return r.constant(value, wide); };
  for (size_t arg = 0; arg < r.args().node().args.size(); ++arg)
    if (r.args().tensor_at(arg) >= 0)  // (beside narrow elements torch takes float32 weights)
      args.tensors.push_back(r.args().is_given(arg) ? r.as(arg, arg == 0 ? dtype : wide)
                                                    : RowArguments::kNone);
  if (rule.form == Form::layer_norm) args.eps = r.number(4, wide);
  if (is_variance(rule.form))
    args.divisor = variance_divisor(extent.row, correction_of(r.args().node()));
  const std::vector<RegisterId> results = exact_rows(r.builder(), rule, args);
  for (size_t i = 0; i < results.size(); ++i)
    r.set_result(
        r.convert({results[i], wide}, r.args().look_of(r.args().member().results[i]).dtype()),
        is_row_result(rule.form, i) ? Rate::row : Rate::element, i);
}

}  // namespace

void lower_rows(Registers& r, const OpRule& rule, const Extent& extent) {
  const int64_t row = extent.row;
  if (!has_mask(rule.form) &&  // (else the first result may be left out)
      (extent.inner > 1 ||
       takes_exact_rows(rule, r.args().node(), r.args().result_look().dtype(), row)))
    return lower_exact_rows(r, rule, extent);
  switch (rule.form) {
    case Form::sum:
    case Form::product:
    case Form::mean:
    case Form::maximum:
    case Form::minimum:
    case Form::any:
    case Form::all:
      return lower_plain_fold(r, rule.form, row);
    case Form::variance:
    case Form::variance_and_mean:
      return lower_variance(r, rule, row);
    case Form::logsumexp:
      return lower_logsumexp(r);
    case Form::softmax:
    case Form::log_softmax:
      refuse_half_to_float(r, rule.form);
      return lower_softmax(r, rule.form == Form::log_softmax);
    case Form::softmax_backward:
    case Form::log_softmax_backward:
      return lower_softmax_backward(r, rule.form == Form::log_softmax_backward);
    case Form::nll_loss:
      return lower_nll_loss(r);
    case Form::nll_loss_backward:
      return lower_nll_loss_backward(r);
    case Form::layer_norm:
      return lower_layer_norm(r, row);
    case Form::layer_norm_backward:
      return lower_layer_norm_backward(r, extent);
    default:
      throw Unfit();
  }
}

}  // namespace lazyeng::fuse
