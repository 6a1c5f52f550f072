// csrc/fuse/op_table.cpp: the table, by the names of the ops.
#include "csrc/fuse/op_table.h"

#include <ATen/core/Reduction.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <unordered_map>

namespace lazyeng::fuse {
namespace {

using Rules = std::unordered_map<std::string, OpRule>;

struct Row {
  const char* name;
  OpRule rule;
};

constexpr Row kRows[] = {
    {"abs", {Form::unary, Opcode::abs}},
    {"neg", {Form::unary, Opcode::neg}},
    {"sign", {Form::unary, Opcode::sign}},
    {"sgn", {Form::unary, Opcode::sign}},
    {"frac", {Form::unary, Opcode::frac}},
    {"floor", {Form::unary, Opcode::floor}},
    {"ceil", {Form::unary, Opcode::ceil}},
    {"trunc", {Form::unary, Opcode::trunc}},
    {"round", {Form::unary, Opcode::round}},
    {"relu", {Form::unary, Opcode::relu}},
    {"bitwise_not", {Form::unary, Opcode::bit_not}},
    {"silu", {Form::unary_float, Opcode::silu}},
    {"hardswish", {Form::unary_float, Opcode::hardswish}},
    {"hardsigmoid", {Form::unary_float, Opcode::hardsigmoid}},
    {"reciprocal", {Form::unary_float, Opcode::reciprocal}},
    {"sqrt", {Form::unary_float, Opcode::sqrt}},
    {"rsqrt", {Form::unary_float, Opcode::rsqrt}},
    {"exp", {Form::unary_float, Opcode::exp}},
    {"exp2", {Form::unary_float, Opcode::exp2}},
    {"expm1", {Form::unary_float, Opcode::expm1}},
    {"log", {Form::unary_float, Opcode::log}},
    {"log2", {Form::unary_float, Opcode::log2}},
    {"log10", {Form::unary_float, Opcode::log10}},
    {"log1p", {Form::unary_float, Opcode::log1p}},
    {"sin", {Form::unary_float, Opcode::sin}},
    {"cos", {Form::unary_float, Opcode::cos}},
    {"tan", {Form::unary_float, Opcode::tan}},
    {"tanh", {Form::unary_float, Opcode::tanh}},
    {"sinh", {Form::unary_float, Opcode::sinh}},
    {"cosh", {Form::unary_float, Opcode::cosh}},
    {"erf", {Form::unary_float, Opcode::erf}},
    {"erfc", {Form::unary_float, Opcode::erfc}},
    {"sigmoid", {Form::unary_float, Opcode::sigmoid}},
    {"acos", {Form::unary_float, Opcode::acos}},
    {"acosh", {Form::unary_float, Opcode::acosh}},
    {"asin", {Form::unary_float, Opcode::asin}},
    {"asinh", {Form::unary_float, Opcode::asinh}},
    {"atan", {Form::unary_float, Opcode::atan}},
    {"atanh", {Form::unary_float, Opcode::atanh}},
    {"erfinv", {Form::unary_float, Opcode::erfinv}},
    {"lgamma", {Form::unary_float, Opcode::lgamma}},
    {"mish", {Form::unary_float, Opcode::mish}},
    {"deg2rad", {Form::to_radians, Opcode::mul}},
    {"rad2deg", {Form::to_degrees, Opcode::mul}},
    {"log_sigmoid_forward", {Form::log_sigmoid, Opcode::log_sigmoid}},
    {"logit", {Form::logit, Opcode::copy}},
    {"add.Tensor", {Form::binary_scaled, Opcode::add}},
    {"add.Scalar", {Form::binary_scaled, Opcode::add}},
    {"sub.Tensor", {Form::binary_scaled, Opcode::sub}},
    {"sub.Scalar", {Form::binary_scaled, Opcode::sub}},
    {"rsub.Tensor", {Form::reversed, Opcode::sub}},
    {"rsub.Scalar", {Form::reversed, Opcode::sub}},
    {"mul.Tensor", {Form::binary, Opcode::mul}},
    {"mul.Scalar", {Form::binary, Opcode::mul}},
    {"div.Tensor", {Form::divide, Opcode::div}},
    {"div.Scalar", {Form::divide, Opcode::div}},
    {"maximum", {Form::binary, Opcode::maximum}},
    {"minimum", {Form::binary, Opcode::minimum}},
    {"fmax", {Form::binary, Opcode::fmax}},
    {"fmin", {Form::binary, Opcode::fmin}},
    {"heaviside", {Form::binary, Opcode::heaviside}},
    {"hypot", {Form::binary, Opcode::hypot}},
    {"logaddexp", {Form::binary, Opcode::logaddexp}},
    {"logaddexp2", {Form::binary, Opcode::logaddexp2}},
    {"fmod.Tensor", {Form::binary, Opcode::fmod}},
    {"fmod.Scalar", {Form::binary, Opcode::fmod}},
    {"remainder.Tensor", {Form::binary, Opcode::remainder}},
    {"remainder.Scalar", {Form::binary, Opcode::remainder}},
    {"remainder.Scalar_Tensor", {Form::binary, Opcode::remainder}},
    {"atan2", {Form::binary_float, Opcode::atan2}},
    {"copysign.Tensor", {Form::binary_float, Opcode::copysign}},
    {"copysign.Scalar", {Form::binary_float, Opcode::copysign}},
    {"xlogy.Tensor", {Form::binary_float, Opcode::xlogy}},
    {"xlogy.Scalar_Self", {Form::binary_float, Opcode::xlogy}},
    {"xlogy.Scalar_Other", {Form::binary_float, Opcode::xlogy}},
    {"special_xlog1py", {Form::binary_float, Opcode::xlog1py}},
    {"special_xlog1py.self_scalar", {Form::binary_float, Opcode::xlog1py}},
    {"special_xlog1py.other_scalar", {Form::binary_float, Opcode::xlog1py}},
    {"pow_.Scalar", {Form::power, Opcode::pow}},  // (not the one in place of that in the next row)
    {"pow.Scalar", {Form::binary, Opcode::pow}},
    {"pow_.Tensor", {Form::with_numbers, Opcode::pow}},
    {"floor_divide", {Form::floor_divide, Opcode::floor_divide}},
    {"floor_divide.Scalar", {Form::floor_divide, Opcode::floor_divide}},
    {"div.Tensor_mode", {Form::divide_rounded, Opcode::div}},
    {"div.Scalar_mode", {Form::divide_rounded, Opcode::div}},
    {"bitwise_left_shift.Tensor", {Form::binary, Opcode::shift_left}},
    {"bitwise_left_shift.Tensor_Scalar", {Form::binary, Opcode::shift_left}},
    {"bitwise_left_shift.Scalar_Tensor", {Form::binary, Opcode::shift_left}},
    {"__lshift__.Tensor", {Form::binary, Opcode::shift_left}},
    {"__lshift__.Scalar", {Form::binary, Opcode::shift_left}},
    {"__ilshift__.Tensor", {Form::binary, Opcode::shift_left}},
    {"__ilshift__.Scalar", {Form::binary, Opcode::shift_left}},
    {"bitwise_right_shift.Tensor", {Form::binary, Opcode::shift_right}},
    {"bitwise_right_shift.Tensor_Scalar", {Form::binary, Opcode::shift_right}},
    {"bitwise_right_shift.Scalar_Tensor", {Form::binary, Opcode::shift_right}},
    {"__rshift__.Tensor", {Form::binary, Opcode::shift_right}},
    {"__rshift__.Scalar", {Form::binary, Opcode::shift_right}},
    {"__irshift__.Tensor", {Form::binary, Opcode::shift_right}},
    {"__irshift__.Scalar", {Form::binary, Opcode::shift_right}},
    {"bitwise_and.Tensor", {Form::binary, Opcode::bit_and}},
    {"bitwise_and.Scalar", {Form::binary, Opcode::bit_and}},
    {"bitwise_and.Scalar_Tensor", {Form::binary, Opcode::bit_and}},
    {"bitwise_or.Tensor", {Form::binary, Opcode::bit_or}},
    {"bitwise_or.Scalar", {Form::binary, Opcode::bit_or}},
    {"bitwise_or.Scalar_Tensor", {Form::binary, Opcode::bit_or}},
    {"bitwise_xor.Tensor", {Form::binary, Opcode::bit_xor}},
    {"bitwise_xor.Scalar", {Form::binary, Opcode::bit_xor}},
    {"bitwise_xor.Scalar_Tensor", {Form::binary, Opcode::bit_xor}},
    {"eq.Tensor", {Form::compare, Opcode::eq}},
    {"eq.Scalar", {Form::compare, Opcode::eq}},
    {"ne.Tensor", {Form::compare, Opcode::ne}},
    {"ne.Scalar", {Form::compare, Opcode::ne}},
    {"lt.Tensor", {Form::compare, Opcode::lt}},
    {"lt.Scalar", {Form::compare, Opcode::lt}},
    {"le.Tensor", {Form::compare, Opcode::le}},
    {"le.Scalar", {Form::compare, Opcode::le}},
    {"gt.Tensor", {Form::compare, Opcode::gt}},
    {"gt.Scalar", {Form::compare, Opcode::gt}},
    {"ge.Tensor", {Form::compare, Opcode::ge}},
    {"ge.Scalar", {Form::compare, Opcode::ge}},
    {"logical_and", {Form::compare, Opcode::logical_and}},
    {"logical_or", {Form::compare, Opcode::logical_or}},
    {"logical_xor", {Form::compare, Opcode::logical_xor}},
    {"logical_not", {Form::unary_to_bool, Opcode::logical_not}},
    {"isnan", {Form::is_nan, Opcode::ne}},
    {"signbit", {Form::unary_to_bool, Opcode::sign_bit}},
    {"isinf", {Form::is_infinite, Opcode::abs}},
    {"isposinf", {Form::is_infinite, Opcode::copy}},
    {"isneginf", {Form::is_infinite, Opcode::neg}},
    {"where.self", {Form::where, Opcode::select}},
    {"masked_fill.Scalar", {Form::masked_fill, Opcode::select}},
    {"masked_fill.Tensor", {Form::masked_fill, Opcode::select}},
    {"clamp", {Form::clamp, Opcode::clamp}},
    {"clamp_min", {Form::clamp, Opcode::maximum}},
    {"clamp_max", {Form::clamp, Opcode::minimum}},
    {"hardtanh", {Form::clamp, Opcode::clamp}},
    {"clamp.Tensor", {Form::clamp_tensors, Opcode::clamp}},
    {"clamp_min.Tensor", {Form::clamp_tensor, Opcode::maximum}},
    {"clamp_max.Tensor", {Form::clamp_tensor, Opcode::minimum}},
    {"threshold", {Form::threshold, Opcode::select}},
    {"nan_to_num", {Form::nan_to_num, Opcode::nan_to_num}},
    {"hardshrink", {Form::hardshrink, Opcode::shrink}},
    {"softshrink", {Form::with_numbers, Opcode::softshrink}},
    {"celu", {Form::celu, Opcode::elu}},
    {"_prelu_kernel", {Form::with_numbers, Opcode::leaky_relu}},
    {"leaky_relu", {Form::with_numbers, Opcode::leaky_relu}},
    {"elu", {Form::with_numbers, Opcode::elu}},
    {"softplus", {Form::with_numbers, Opcode::softplus}},
    {"addcmul", {Form::with_numbers, Opcode::addcmul}},
    {"addcdiv", {Form::with_numbers, Opcode::addcdiv}},
    {"lerp.Scalar", {Form::with_numbers, Opcode::lerp}},
    {"lerp.Tensor", {Form::with_numbers, Opcode::lerp}},
    {"pow.Tensor_Tensor", {Form::with_numbers, Opcode::pow}},
    {"threshold_backward", {Form::with_numbers, Opcode::threshold_backward}},
    {"tanh_backward", {Form::with_numbers, Opcode::tanh_backward}},
    {"sigmoid_backward", {Form::with_numbers, Opcode::sigmoid_backward}},
    {"silu_backward", {Form::with_numbers, Opcode::silu_backward}},
    {"leaky_relu_backward", {Form::with_numbers, Opcode::leaky_relu_backward}},
    {"mish_backward", {Form::with_numbers, Opcode::mish_backward}},
    {"hardswish_backward", {Form::with_numbers, Opcode::hardswish_backward}},
    {"hardsigmoid_backward", {Form::with_numbers, Opcode::hardsigmoid_backward}},
    {"hardtanh_backward", {Form::with_numbers, Opcode::hardtanh_backward}},
    {"softplus_backward", {Form::with_numbers, Opcode::softplus_backward}},
    {"log_sigmoid_backward", {Form::with_numbers, Opcode::log_sigmoid_backward}},
    {"hardshrink_backward", {Form::with_numbers, Opcode::shrink}},
    {"softshrink_backward", {Form::with_numbers, Opcode::shrink}},
    {"elu_backward", {Form::elu_backward, Opcode::elu_slope}},
    {"_prelu_kernel_backward", {Form::prelu_backward, Opcode::leaky_relu_backward}},
    {"native_dropout_backward", {Form::dropout_backward, Opcode::mul}},
    {"gelu_backward", {Form::gelu_backward, Opcode::gelu_backward}},
    {"gelu", {Form::gelu, Opcode::gelu}},
    {"pow.Tensor_Scalar", {Form::power, Opcode::pow}},
    {"_to_copy", {Form::cast, Opcode::copy}},
    {"clone", {Form::cast, Opcode::copy}},
    {"copy", {Form::cast, Opcode::copy}},
    {"fill.Scalar", {Form::fill, Opcode::copy}},
    {"full_like", {Form::fill, Opcode::copy}},
    {"zero", {Form::zero, Opcode::copy}},
    {"zeros_like", {Form::zero, Opcode::copy}},
    {"sum", {Form::sum, Opcode::copy}},
    {"sum.dim_IntList", {Form::sum, Opcode::copy}},
    {"prod", {Form::product, Opcode::copy}},
    {"prod.dim_int", {Form::product, Opcode::copy}},
    {"mean", {Form::mean, Opcode::copy}},
    {"mean.dim", {Form::mean, Opcode::copy}},
    {"amax", {Form::maximum, Opcode::copy}},
    {"max", {Form::maximum, Opcode::copy}},
    {"amin", {Form::minimum, Opcode::copy}},
    {"min", {Form::minimum, Opcode::copy}},
    {"any", {Form::any, Opcode::copy}},
    {"any.dim", {Form::any, Opcode::copy}},
    {"any.dims", {Form::any, Opcode::copy}},
    {"all", {Form::all, Opcode::copy}},
    {"all.dim", {Form::all, Opcode::copy}},
    {"all.dims", {Form::all, Opcode::copy}},
    {"ones_like", {Form::one, Opcode::copy}},
    {"mse_loss", {Form::mse_loss, Opcode::square}},
    {"mse_loss_backward", {Form::mse_loss_backward, Opcode::copy}},
    {"smooth_l1_loss", {Form::loss, Opcode::smooth_l1}},
    {"smooth_l1_loss_backward", {Form::loss_backward, Opcode::smooth_l1_backward}},
    {"huber_loss", {Form::loss, Opcode::huber}},
    {"huber_loss_backward", {Form::loss_backward, Opcode::huber_backward}},
    {"binary_cross_entropy_with_logits", {Form::loss, Opcode::log_sigmoid}},
    {"var.correction", {Form::variance, Opcode::copy}},
    {"std.correction", {Form::variance, Opcode::sqrt}},
    {"var_mean.correction", {Form::variance_and_mean, Opcode::copy}},
    {"std_mean.correction", {Form::variance_and_mean, Opcode::sqrt}},
    {"logsumexp", {Form::logsumexp, Opcode::copy}},
    {"_softmax", {Form::softmax, Opcode::copy}},
    {"_log_softmax", {Form::log_softmax, Opcode::copy}},
    {"_softmax_backward_data", {Form::softmax_backward, Opcode::copy}},
    {"_log_softmax_backward_data", {Form::log_softmax_backward, Opcode::copy}},
    {"nll_loss_forward", {Form::nll_loss, Opcode::copy}},
    {"nll_loss_backward", {Form::nll_loss_backward, Opcode::copy}},
    {"native_layer_norm", {Form::layer_norm, Opcode::copy}},
    {"native_layer_norm_backward", {Form::layer_norm_backward, Opcode::copy}},
};

/// "aten::add_.Tensor", the op that writes its first argument.
std::string in_place_name(const std::string& name) {
  const size_t dot = name.find('.');
  return dot == std::string::npos ? name + "_" : name.substr(0, dot) + "_" + name.substr(dot);
}

Rules make_rules() {
  Rules rules;
  for (const Row& row : kRows) {
    const std::string name = std::string("aten::") + row.name;
    rules.emplace(name, row.rule);
    rules.emplace(in_place_name(name), row.rule);
  }
  return rules;
}

const Rules& rules() {
  static const Rules* const made = new Rules(make_rules());
  return *made;
}

}  // namespace

Rounding rounding_of(const run::Node& node) {
  if (node.args[2].isNone()) return Rounding::none;
  return node.args[2].toStringView() == "floor" ? Rounding::down : Rounding::to_zero;
}

bool is_unreduced(Form form, const run::Node& node) {
  if (!is_loss(form)) return false;
  const auto reduction = std::ranges::find_if(node.args, &c10::IValue::isInt);
  return reduction != node.args.end() && reduction->toInt() == at::Reduction::None;
}

const OpRule* rule_of(const run::OpInfo& info) {
  const void* known = info.fuse_rule.load(std::memory_order_acquire);
  if (!known) {
    // (An op whose kernel the program has replaced is not of aten: record/library.h.)
    const auto found = info.aten ? rules().find(info.name) : rules().end();
    // (The rules themselves stand for "looked up, and not there".)
    known = found == rules().end() ? static_cast<const void*>(&rules()) : &found->second;
    info.fuse_rule.store(known, std::memory_order_release);
  }
  return known == &rules() ? nullptr : static_cast<const OpRule*>(known);
}

namespace {
std::atomic<uint64_t> changes{0};
}  // namespace

uint64_t rules_version() { return changes.load(std::memory_order_acquire); }
void rules_changed() { changes.fetch_add(1, std::memory_order_release); }

std::map<std::string, OpRule> all_rules() { return {rules().begin(), rules().end()}; }

}  // namespace lazyeng::fuse
