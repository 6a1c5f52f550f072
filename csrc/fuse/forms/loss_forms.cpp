// csrc/fuse/forms/loss_forms.cpp: losses of each element, and their gradients.
#include <algorithm>

#include "csrc/fuse/forms/forms.h"
#include "csrc/fuse/forms/math.h"

namespace lazyeng::fuse {
namespace {

/// The float among the arguments: where the loss becomes linear.
double bound_of(const Registers& r) {
  const auto& args = r.args().node().args;
  const auto bound = std::ranges::find_if(args, &c10::IValue::isDouble);
  if (bound == args.end()) throw Unfit();
  return bound->toDouble();
}

/// Rounded after each step: torch does it op by op.
Operand logits_loss(Registers& r) {
  const Arguments& args = r.args();
  const c10::ScalarType dtype = args.dtype_at(0);
  if (args.common_dtype({0, 1}) != dtype || !c10::isFloatingType(dtype)) throw Unfit();
  for (const size_t weights : {2, 3})
    if (args.is_given(weights) && args.dtype_at(weights) != dtype) throw Unfit();
  const auto step = [&](Opcode opcode, RegisterId a, RegisterId b) {
    return r.step(opcode, dtype, {a, b}).reg;
  };
  const RegisterId x = r.as(0, dtype), target = r.as(1, dtype), one = r.constant(1, dtype);
  RegisterId part = r.step(Opcode::log_sigmoid, dtype, {x}).reg;
  if (args.is_given(3)) {
    const RegisterId positive = step(Opcode::sub, r.as(3, dtype), one);
    part = step(Opcode::mul, part, step(Opcode::add, step(Opcode::mul, positive, target), one));
  }
  RegisterId loss = step(Opcode::sub, step(Opcode::mul, step(Opcode::sub, one, target), x), part);
  if (args.is_given(2)) loss = step(Opcode::mul, loss, r.as(2, dtype));
  return {loss, dtype};
}

}  // namespace

bool takes_mean(const Registers& r) {
  const auto& args = r.args().node().args;
  const auto reduction = std::ranges::find_if(args, &c10::IValue::isInt);
  return reduction != args.end() && reduction->toInt() == 1;
}

Operand lower_loss(Registers& r, const OpRule& rule) {
  if (rule.opcode == Opcode::log_sigmoid) return logits_loss(r);
  const c10::ScalarType dtype = r.args().common_dtype({0, 1});
  if (!c10::isFloatingType(dtype)) throw Unfit();
  if (rule.opcode == Opcode::square) {
    const RegisterId difference = r.step(Opcode::sub, dtype, {r.as(0, dtype), r.as(1, dtype)}).reg;
    return r.step(Opcode::square, dtype, {difference});
  }
  const Math math(r, dtype);
  const RegisterId a = math.argument(0), b = math.argument(1);
  return math.rounded(math(rule.opcode, a, b, math.number(bound_of(r))), dtype);
}

Operand lower_loss_backward(Registers& r, const OpRule& rule) {
  const c10::ScalarType dtype = r.args().common_dtype({0, 1, 2});
  const Math math(r, dtype);
  const int16_t input = r.args().value_of(r.args().tensor_at(1));
  if (input == kNone) throw Unfit();
  const auto numel = static_cast<double>(r.args().look_of(input).numel());
  const double norm = takes_mean(r) ? 1 / numel : 1;
  const RegisterId grad = math.argument(0);
  const RegisterId difference = math(Opcode::sub, math.argument(1), math.argument(2));
  if (rule.form == Form::mse_loss_backward) {
    const RegisterId factor = math.number(takes_mean(r) ? 2 / numel : 2);
    return math.rounded(math(Opcode::mul, math(Opcode::mul, difference, factor), grad), dtype);
  }
  return math.rounded(
      math(rule.opcode, grad, difference, math.number(bound_of(r)), math.number(norm)), dtype);
}

}  // namespace lazyeng::fuse
