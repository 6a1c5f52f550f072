// csrc/fuse/exact_rows.cpp: each form as torch's kernel computes it.
#include "csrc/fuse/exact_rows.h"

#include <algorithm>

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
  RegisterId fold(RowFold fold, RegisterId reg, double divisor = 1) const {
    return builder_.fold_rows(reg, fold, divisor);
  }
  RegisterId first(RegisterId pair) const { return builder_.half(pair, false); }
  RegisterId second(RegisterId pair) const { return builder_.half(pair, true); }

 private:
  ProgramBuilder& builder_;
  const Type type_;
};

RegisterId softmax(const Steps& steps, RegisterId x, bool log) {
  const RegisterId maximum = steps.fold(RowFold::vector_maximum, x);
  const RegisterId each = steps(Opcode::exp_less, x, maximum);
  const RegisterId sum = steps.fold(RowFold::vector_sum, each);
  if (log) return steps(Opcode::less_both, x, maximum, steps(Opcode::log, sum));
  return steps(Opcode::mul, each, steps(Opcode::reciprocal, sum));
}

RegisterId softmax_backward(ProgramBuilder& builder, const Steps& steps, RegisterId grad,
                            RegisterId output, bool log) {
  if (!log) {
    const RegisterId total = builder.fold_rows(grad, RowFold::vector_dot, 1, output);
    return steps(Opcode::mul, steps(Opcode::sub, grad, total), output);
  }
  const RegisterId total = steps(Opcode::neg, steps.fold(RowFold::vector_sum, grad));
  return steps(Opcode::add_scaled, grad, steps(Opcode::exp, output), total);
}

/// (Torch adds a bias of 0 where there is none.)
std::vector<RegisterId> layer_norm(const Steps& steps, const RowArguments& args) {
  const RegisterId x = args.tensors[0], weight = args.tensors[1];
  const RegisterId moments = steps.fold(RowFold::moments, x);
  const RegisterId mean = steps.first(moments), variance = steps.second(moments);
  const RegisterId root = steps(Opcode::sqrt, steps(Opcode::add, variance, args.eps));
  const RegisterId rstd = steps(Opcode::reciprocal, root);
  const bool has_bias = args.tensors[2] != RowArguments::kNone;
  const RegisterId bias = has_bias ? args.tensors[2] : args.number(0);
  const RegisterId y =
      weight == RowArguments::kNone
          ? steps(Opcode::add_scaled, bias, steps(Opcode::sub, x, mean), rstd)
          : steps(Opcode::add_scaled, bias, steps(Opcode::standardise, x, mean, rstd), weight);
  return {y, mean, rstd};
}

}  // namespace

bool has_exact_rows(Form form) {
  switch (form) {
    case Form::sum:
    case Form::mean:
    case Form::variance:
    case Form::variance_and_mean:
    case Form::softmax:
    case Form::log_softmax:
    case Form::softmax_backward:
    case Form::log_softmax_backward:
    case Form::layer_norm:
      return true;
    default:
      return false;
  }
}

bool rows_pay(Form form, int64_t row) {
  constexpr int64_t kFewElements = 16, kManyElements = 128, kManyOfNorm = 256;
  if (form == Form::layer_norm) return row >= kManyOfNorm;
  if (form == Form::softmax_backward || form == Form::log_softmax_backward)
    return row < kFewElements;
  return !is_normalization(form) || row < kFewElements || row >= kManyElements;
}

bool takes_exact_rows(const OpRule& rule, const run::Node& node, c10::ScalarType dtype,
                      int64_t row) {
  if (!node.device.is_cpu() || !has_exact_rows(rule.form)) return false;
  if (dtype != c10::kFloat && dtype != c10::kDouble) return false;
  if (!allows_inexact(c10::kCPU)) return true;
  if (row < kLanes) return !is_variance(rule.form);
  return rule.form == Form::sum || rule.form == Form::mean;
}

bool has_exact_sum(Form form) {
  return form == Form::sum || form == Form::mean || form == Form::mse_loss;
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
      return {steps.fold(RowFold::cascade_sum, x)};
    case Form::mean:
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
    case Form::softmax:
    case Form::log_softmax:
      return {softmax(steps, x, rule.form == Form::log_softmax)};
    case Form::softmax_backward:
    case Form::log_softmax_backward:
      return {softmax_backward(builder, steps, x, args.tensors[1],
                               rule.form == Form::log_softmax_backward)};
    default:
      return layer_norm(steps, args);
  }
}

}  // namespace lazyeng::fuse
