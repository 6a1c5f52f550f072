// csrc/fuse/bits/exact_rows.cpp: each form as torch's kernel computes it.
#include "csrc/fuse/bits/exact_rows.h"

#include <algorithm>
#include <limits>

#include "csrc/fuse/bits/torch_functions.h"
#include "csrc/fuse/result_type.h"

namespace lazyeng::fuse {
namespace {

class Steps {
 public:
  Steps(ProgramBuilder& builder, const RowArguments& args)
      : builder_(builder), type_(builder.type_of(args.tensors[0])) {}

  template <class... In>
  RegisterId operator()(Opcode opcode, In... in) const {
    return builder_.step(opcode, type_, type_, {in...});
  }
  /// A function that torch has a kernel of its own for.
  RegisterId function(Opcode opcode, RegisterId x) const {
    return builder_.step(opcode, type_, type_, {x}, torch_function(opcode, type_));
  }
  RegisterId fold(RowFold fold, RegisterId reg, double divisor = 1) const {
    return builder_.rows(fold, {reg}, divisor);
  }
  /// In the order of torch's kernel for that type.
  RegisterId rows(RowFold fold, std::initializer_list<RegisterId> in, Type order_of) const {
    return builder_.rows(fold, in, 1, order_of);
  }
  RegisterId first(RegisterId pair) const { return builder_.half(pair, false); }
  RegisterId second(RegisterId pair) const { return builder_.half(pair, true); }

 private:
  ProgramBuilder& builder_;
  const Type type_;
};

/// (Torch adds a bias of 0 where there is none.)
std::vector<RegisterId> layer_norm(const Steps& steps, const RowArguments& args) {
  const RegisterId x = args.tensors[0], weight = args.tensors[1];
  const RegisterId moments = steps.rows(RowFold::moments, {x, args.eps}, args.order_of);
  const bool has_bias = args.tensors[2] != RowArguments::kNone;
  const RegisterId bias = has_bias ? args.tensors[2] : args.number(0);
  const RegisterId y =
      weight == RowArguments::kNone
          ? steps.rows(RowFold::normalise, {x, moments, bias}, args.order_of)
          : steps.rows(RowFold::normalise_and_scale, {x, moments, bias, weight}, args.order_of);
  return {y, steps.first(moments), steps.second(moments)};
}

/// The maximum is taken out of the exponents unless it is infinite. (Which zero it is makes no
/// difference: the logarithm is none with a sign then.)
RegisterId log_sum_exp(ProgramBuilder& builder, const Steps& steps, const RowArguments& args) {
  const RegisterId x = args.tensors[0];
  const Type type = builder.type_of(x);
  const RegisterId maximum = builder.fold_rows(x, Fold::maximum, 1, type);
  const RegisterId infinity = args.number(std::numeric_limits<double>::infinity());
  const RegisterId infinite =
      builder.step(Opcode::eq, type, Type::b8, {steps(Opcode::abs, maximum), infinity});
  const RegisterId shift =
      builder.step(Opcode::select, type, type, {infinite, args.number(0), maximum});
  const RegisterId each = steps.function(Opcode::exp, steps(Opcode::sub, x, shift));
  const RegisterId sum = steps.fold(RowFold::cascade_sum, each);
  return steps(Opcode::add, steps.function(Opcode::log, sum), shift);
}

}  // namespace

bool has_exact_rows(Form form, c10::ScalarType dtype) {
  switch (form) {
    case Form::sum:
    case Form::mean:
    case Form::variance:
    case Form::variance_and_mean:
    case Form::softmax:
    case Form::log_softmax:
    case Form::layer_norm:
      return c10::isFloatingType(dtype);
    case Form::logsumexp:
    case Form::softmax_backward:
    case Form::log_softmax_backward:
      return dtype == c10::kFloat || dtype == c10::kDouble;
    default:
      return false;
  }
}

bool rows_pay(Form form, c10::ScalarType dtype, int64_t row) {
  constexpr int64_t kFewElements = 16, kManyOfLog = 32, kManyOfLogSum = 512;
  constexpr int64_t kManyOfHalfNorm = 64, kManyOfNorm = 256;
  if (form == Form::logsumexp) return row >= kManyOfLogSum;
  if (form == Form::softmax_backward || form == Form::log_softmax_backward)
    return row < kFewElements;
  if (form == Form::layer_norm && is_narrow(dtype))
    return row < (dtype == c10::kHalf ? kManyOfHalfNorm : kManyOfNorm);
  return form != Form::log_softmax || row < kFewElements ||
         (row >= kManyOfLog && dtype != c10::kHalf);
}

bool takes_exact_rows(const OpRule& rule, const run::Node& node, c10::ScalarType dtype,
                      int64_t row) {
  if (!node.device.is_cpu() || !has_exact_rows(rule.form, dtype)) return false;
  if (!allows_inexact(c10::kCPU)) return true;
  if (row < kLanes) return !is_variance(rule.form);
  return rule.form == Form::sum || rule.form == Form::mean;
}

bool has_exact_sum(Form form, c10::ScalarType dtype) {
  if (form == Form::nll_loss) return dtype == c10::kFloat || dtype == c10::kDouble;
  return c10::isFloatingType(dtype) &&
         (form == Form::sum || form == Form::mean || form == Form::mse_loss);
}

double correction_of(const run::Node& node) {
  return node.args[2].isScalar() ? node.args[2].toScalar().toDouble() : 1;
}

double variance_divisor(int64_t row, double correction) {
  return std::max(static_cast<double>(row) - correction, 0.0);
}

std::vector<RegisterId> exact_rows(ProgramBuilder& builder, const OpRule& rule,
                                   const RowArguments& args) {
  const Steps steps(builder, args);
  const RegisterId x = args.tensors[0];
  switch (rule.form) {
    case Form::sum:
      return {steps.rows(RowFold::cascade_sum, {x}, args.order_of)};
    case Form::mean:  // (torch widens all elements first, and rounds only the mean)
      return {steps(Opcode::div, steps.fold(RowFold::cascade_sum, x),
                    args.number(static_cast<double>(args.row)))};
    case Form::variance:
    case Form::variance_and_mean: {
      const bool root = rule.opcode == Opcode::sqrt;
      const RegisterId both = steps.fold(
          root ? RowFold::running_deviation : RowFold::running_variance, x, args.divisor);
      if (rule.form == Form::variance) return {steps.first(both)};
      return {steps.first(both), steps.second(both)};
    }
    case Form::logsumexp:
      return {log_sum_exp(builder, steps, args)};
    case Form::softmax:
      if (args.inner > 1) return {builder.rows_across(RowFold::softmax_across, x, args.inner)};
      return {steps.rows(RowFold::softmax, {x}, args.order_of)};
    case Form::log_softmax:
      if (args.inner > 1) return {builder.rows_across(RowFold::log_softmax_across, x, args.inner)};
      return {steps.rows(RowFold::log_softmax, {x}, args.order_of)};
    case Form::softmax_backward:
      return {builder.rows(RowFold::softmax_backward, {x, args.tensors[1]})};
    case Form::log_softmax_backward:
      return {builder.rows(RowFold::log_softmax_backward, {x, args.tensors[1]})};
    default:
      return layer_norm(steps, args);
  }
}

}  // namespace lazyeng::fuse
