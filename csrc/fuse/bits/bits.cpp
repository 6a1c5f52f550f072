// csrc/fuse/bits/bits.cpp: of which ops a program gives torch's bits (declared in
// csrc/fuse/op_table.h).
#include <algorithm>
#include <atomic>
#include <cmath>

#include "csrc/fuse/bits/exact_rows.h"
#include "csrc/fuse/bits/trials.h"
#include "csrc/fuse/chosen_ops.h"
#include "csrc/fuse/extent.h"
#include "csrc/fuse/numbers.h"
#include "csrc/fuse/op_table.h"
#include "csrc/fuse/result_type.h"

namespace lazyeng::fuse {
namespace {

std::atomic<bool> inexact_on_cpu{false}, inexact_on_devices{true};

/// The order does not matter to integers, nor to an extreme value. But of 0.0 and -0.0 it decides
/// which one is found.
Bits bits_of_reduction(Form form, c10::ScalarType result) {
  if (form == Form::nll_loss_backward) return Bits::same;  // (it only looks like one)
  if (!is_plain_fold(form)) return Bits::other;
  if (!c10::isFloatingType(result)) return Bits::same;
  return form == Form::maximum || form == Form::minimum ? Bits::checked : Bits::other;
}

/// Whether torch has its kernel for rows: for the last dim, and elements without gaps. (Others it
/// copies for some forms.)
bool has_rows_of_torch(const OpRule& rule, const run::Node& node, int64_t row) {
  const run::Geometry& look = node.tensors[0].value->geometry();
  const auto is_last = [&](const c10::IValue& dim) {
    const auto dims = static_cast<int64_t>(look.sizes().size());
    return dim.isInt() && (dim.toInt() == -1 || dim.toInt() == dims - 1);
  };
  switch (rule.form) {
    case Form::softmax:
    case Form::log_softmax:
      return is_last(node.args[1]);
    case Form::softmax_backward:  // (of what is left over bits depend on the number of threads)
      return is_last(node.args[2]) && is_whole(row);
    case Form::log_softmax_backward:
      return is_last(node.args[2]);
    case Form::layer_norm:
      return true;
    default:
      return look.dense();
  }
}

/// Torch shares the elements of longer rows among threads.
constexpr int64_t kLongestRowOfVariance = (1 << 15) - 1;

/// Whether torch's kernel and the steps were found to add in the same order.
bool rows_were_tried(const OpRule& rule, const run::Node& node, c10::ScalarType dtype,
                     int64_t row) {
  if (!has_exact_rows(rule.form, dtype) || !rows_pay(rule.form, dtype, row)) return false;
  // (Where nothing is left to divide by torch warns.)
  if (is_variance(rule.form) &&
      (row > kLongestRowOfVariance || correction_of(node) >= static_cast<double>(row)))
    return false;
  return has_rows_of_torch(rule, node, row);
}

/// The same of all elements, in the order of memory, which several threads share.
bool sum_was_tried(const OpRule& rule, const run::Node& node, c10::ScalarType dtype) {
  const run::Geometry& first = node.tensors[0].value->geometry();
  return has_exact_sum(rule.form, dtype) &&
         std::ranges::all_of(node.tensors, [&](const run::TensorArg& arg) {
           const run::Geometry& look = arg.value->geometry();
           return look.dense() && look.sizes() == first.sizes() &&
                  look.strides() == first.strides();
         });
}

/// Whether all tensors have that dtype. Beside narrow elements torch's layer_norm takes a weight
/// and a bias of float32, too.
bool have_dtype(const run::Node& node, Form form, c10::ScalarType dtype) {
  const auto have = [&](c10::ScalarType weights) {
    return std::ranges::all_of(node.tensors, [&](const run::TensorArg& arg) {
      if (!arg.value) return !arg.raw.defined();
      return arg.value->geometry().dtype() == (&arg == node.tensors.begin() ? dtype : weights);
    });
  };
  return have(dtype) || (form == Form::layer_norm && is_narrow(dtype) && have(c10::kFloat));
}

/// Of softmax along other dims than the last: whether each of torch's threads has whole vectors of
/// the elements of layers. (Some of torch's versions have fewer threads for few elements.)
bool slabs_were_tried(const OpRule& rule, const run::Node& node, c10::ScalarType dtype,
                      const Extent& extent) {
  if (rule.form == Form::log_softmax) return true;
  constexpr int64_t kGrain = 32768;
  const int64_t folded = extent.row / extent.inner, n = extent.elements->numel() / folded;
  const int64_t grain = std::max<int64_t>(kGrain / folded, 1), most = node.settings.num_threads;
  const auto fits = [&](int64_t threads) { return n % (threads * whole_layer(dtype)) == 0; };
  return fits(std::min(most, n)) && fits(std::min(most, (n + grain - 1) / grain));
}

bool reduction_was_tried(const OpRule& rule, const run::Node& node, c10::ScalarType dtype,
                         const Extent& extent) {
  if (!node.device.is_cpu() || !gives_torchs_bits(rule.form, dtype)) return false;
  if (rule.form == Form::nll_loss) return true;
  if (!have_dtype(node, rule.form, dtype)) return false;
  if (extent.inner > 1) return slabs_were_tried(rule, node, dtype, extent);
  return extent.folds ? extent.places.totals == 1 && sum_was_tried(rule, node, dtype)
                      : rows_were_tried(rule, node, dtype, extent.row);
}

/// Whether each of torch's threads has whole vectors of the elements: it shares them out by grains,
/// which are smaller for gelu than for other ops.
bool falls_into_whole_vectors(const run::Node& node) {
  constexpr int64_t kGrain = 32768, kGrainOfGelu = 16384;
  const int64_t n = node.tensors[0].value->geometry().numel();
  const int64_t most = node.settings.num_threads;
  const auto fits = [n](int64_t threads) { return n % (threads * kWholeVectors) == 0; };
  return fits(1) && fits(std::min(most, (n + kGrain - 1) / kGrain)) &&
         (n <= kGrainOfGelu || fits(most));
}

/// Whether the step was found to give torch's bits for such tensors, on the CPU. `number`: another
/// operand is a number, which torch makes a tensor of.
bool was_tried(Opcode opcode, const run::Node& node, c10::ScalarType dtype, bool number = false) {
  if (!node.device.is_cpu()) return false;
  bool dense = !number;
  const run::Geometry* first = nullptr;
  for (const run::TensorArg& arg : node.tensors) {
    if (!arg.value) {  // a number as well, or left out
      dense &= !arg.raw.defined();
      continue;
    }
    const run::Geometry& look = arg.value->geometry();
    if (look.dtype() != dtype) return false;
    if (!first) first = &look;
    // (Of a tensor without dims torch takes the way of those with gaps.)
    dense &= look.dense() && !look.sizes().empty() && look.sizes() == first->sizes() &&
             look.strides() == first->strides();
  }
  return gives_torchs_bits(opcode, dtype, dense, dense && falls_into_whole_vectors(node));
}

/// Whether one of the first two arguments, which could be tensors, is a number.
bool takes_number(const OpRule& rule, const run::Node& node) {
  const bool of_two = rule.form == Form::binary || rule.form == Form::binary_float ||
                      rule.form == Form::floor_divide || rule.form == Form::divide_rounded;
  return of_two && (node.args[0].isScalar() || node.args[1].isScalar());
}

/// Whether each element that the op makes depends on how torch was compiled and on the processor,
/// or on where in memory it lies: that is known only if it was tried.
bool varies(Opcode opcode) {
  switch (opcode) {
    case Opcode::relu:
    case Opcode::leaky_relu:
    case Opcode::shrink:
      return false;
    case Opcode::sqrt:
    case Opcode::pow:
    case Opcode::lerp:
    case Opcode::addcmul:
    case Opcode::addcdiv:
    case Opcode::tanh_backward:
    case Opcode::silu_backward:
    case Opcode::gelu_backward:
    case Opcode::gelu_tanh_backward:
    case Opcode::mish_backward:
    case Opcode::hardswish_backward:
    case Opcode::hardsigmoid_backward:
    case Opcode::softplus_backward:
    case Opcode::log_sigmoid_backward:
    case Opcode::elu_slope:
    case Opcode::smooth_l1_backward:
    case Opcode::huber_backward:
      return true;
    default:
      return opcode >= Opcode::exp && opcode <= Opcode::huber;
  }
}

/// With a weight of 1 the sign of a zero depends on which of torch's loops the number gets into.
bool has_weight_other_than_one(const run::Node& node, c10::ScalarType dtype) {
  if (!node.args[2].isScalar()) return false;  // a tensor may hold it
  const double weight = node.args[2].toScalar().toDouble();
  return dtype == c10::kFloat ? static_cast<float>(weight) != 1 : weight != 1;
}

/// Of several steps, which torch's kernel rounds otherwise, or which were not tried together.
bool rounds_otherwise(const OpRule& rule, const run::Node& node, c10::ScalarType result) {
  if (rule.form == Form::mse_loss_backward || rule.form == Form::logit) return true;
  // Narrow dtypes are rounded after each of several operations, or only after the last.
  return is_narrow(result) &&
         (rule.opcode == Opcode::rsqrt || rule.opcode == Opcode::sigmoid_backward ||
          rule.opcode == Opcode::floor_divide || rule.form == Form::loss ||
          (rule.form == Form::divide_rounded && rounding_of(node) == Rounding::down));
}

/// Powers that are products and quotients (csrc/fuse/forms/pointwise_forms.cpp). Of narrow dtypes
/// those that are rounded once: all values of both were compared.
bool is_exact_power(double exponent, c10::ScalarType result) {
  constexpr double kOnce[] = {-1, 0, 1, 2}, kSeveral[] = {-2, -0.5, 3};
  return std::ranges::find(kOnce, exponent) != std::end(kOnce) ||
         (!is_narrow(result) && std::ranges::find(kSeveral, exponent) != std::end(kSeveral));
}

bool gives_same_bits(const OpRule& rule, const run::Node& node, c10::ScalarType result) {
  if (rounds_otherwise(rule, node, result)) return false;
  if (rule.form == Form::power && node.args[1].isScalar())
    return is_exact_power(node.args[1].toScalar().toDouble(), result);
  if (rule.form == Form::binary_scaled || rule.form == Form::reversed) {
    const size_t alpha = node.args.size() - 1;  // rsub has one, too
    if (!node.args[alpha].isScalar()) return false;
    return node.args[alpha].toScalar().equal(1) ||
           was_tried(Opcode::add_scaled, node, result, node.args[1].isScalar());
  }
  if (rule.opcode == Opcode::lerp && !has_weight_other_than_one(node, result)) return false;
  const bool tanh =
      rule.form == Form::gelu && node.args[1].isString() && node.args[1].toStringView() == "tanh";
  const Opcode opcode = tanh ? Opcode::gelu_tanh : rule.opcode;
  return !varies(opcode) || was_tried(opcode, node, result, takes_number(rule, node));
}

/// Whether a number stands there that no dtype takes for 0.
bool is_known_divisor(const run::Node& node) {
  c10::Scalar number;
  if (node.args[1].isScalar()) {
    number = node.args[1].toScalar();
  } else {
    const at::Tensor& raw = node.tensors.back().raw;
    if (node.tensors.back().value || !raw.defined() || raw.numel() != 1) return false;
    number = number_at(static_cast<const char*>(raw.const_data_ptr()), raw.scalar_type());
  }
  const double value = std::abs(number.toDouble());
  return value >= 1 && value <= 127;
}

}  // namespace

void set_inexact(bool on_cpu) {
  inexact_on_cpu.store(on_cpu, std::memory_order_relaxed);
  rules_changed();
}
void set_inexact_on_devices(bool on) {
  inexact_on_devices.store(on, std::memory_order_relaxed);
  rules_changed();
}
bool allows_inexact(c10::Device device) {
  return (device.is_cpu() ? inexact_on_cpu : inexact_on_devices).load(std::memory_order_relaxed);
}

/// The sign of a zero (of 0.0 and -0.0 torch takes the second in whole vectors, and the first in
/// what is left over), NaN beyond a bound, remainders of what is much larger than the divisor.
/// Where other bits are allowed, only what is infinite in whole vectors, and a number elsewhere.
bool refuses_doubtful(const OpRule& rule, const run::Node& node, c10::ScalarType result) {
  if (allows_inexact(node.device))
    return node.device.is_cpu() && (rule.opcode == Opcode::cosh || rule.opcode == Opcode::sinh);
  const auto is_down = [&] {  // (a narrow quotient is rounded before it is rounded down)
    return !is_narrow(result) || takes_number(rule, node);
  };
  switch (rule.form) {
    case Form::clamp_tensors:
    case Form::clamp_tensor:
      return true;
    case Form::floor_divide:
      return is_down();
    case Form::divide_rounded:
      return rounding_of(node) == Rounding::down && is_down();
    case Form::binary:
      return rule.opcode == Opcode::maximum || rule.opcode == Opcode::minimum ||
             rule.opcode == Opcode::fmax || rule.opcode == Opcode::fmin ||
             rule.opcode == Opcode::fmod || rule.opcode == Opcode::remainder;
    case Form::with_numbers:
      return rule.opcode == Opcode::shrink || rule.opcode == Opcode::hardtanh_backward;
    default:
      return false;
  }
}

bool may_refuse(const OpRule& rule, const run::Node& node, c10::ScalarType result) {
  if (!node.device.is_cpu()) return false;
  if (rule.form == Form::nll_loss || rule.form == Form::nll_loss_backward)
    return true;  // a target that no row has
  if (!c10::isIntegralType(result, /*includeBool=*/false)) return false;
  const bool divides = rule.form == Form::floor_divide || rule.opcode == Opcode::fmod ||
                       rule.opcode == Opcode::remainder ||
                       (rule.form == Form::divide_rounded && rounding_of(node) != Rounding::none);
  return divides && !is_known_divisor(node);
}

bool may_join(const run::Node& node) {
  if (begins_pair(node) || lists_of(node) != 0) return true;
  const OpRule* rule = rule_of(node.info);
  if (!rule || !is_reduction(rule->form) || is_unreduced(rule->form, node) ||
      allows_inexact(node.device))
    return rule != nullptr;
  if (node.outputs.empty() || !node.outputs[0]) return false;
  const c10::ScalarType dtype = node.outputs[0]->geometry().dtype();
  return bits_of_reduction(rule->form, dtype) != Bits::other ||
         gives_torchs_bits(rule->form, dtype);
}

bool usually_joins(const run::OpInfo& info, const run::Geometry& result) {
  const OpRule* rule = rule_of(info);
  if (!rule || !is_reduction(rule->form) || allows_inexact(result.device())) return rule != nullptr;
  return bits_of_reduction(rule->form, result.dtype()) != Bits::other ||
         gives_torchs_bits(rule->form, result.dtype());
}

Bits bits_of(const OpRule& rule, const run::Node& node, c10::ScalarType result,
             const Extent& extent) {
  if (is_reduction(rule.form) && !is_unreduced(rule.form, node))
    return reduction_was_tried(rule, node, result, extent) ? Bits::same
                                                           : bits_of_reduction(rule.form, result);
  if (c10::isIntegralType(result, /*includeBool=*/true)) return Bits::same;
  if (refuses_doubtful(rule, node, result)) return Bits::checked;
  return gives_same_bits(rule, node, result) ? Bits::same : Bits::other;
}

}  // namespace lazyeng::fuse
