// csrc/fuse/op_table.cpp: the table, by the names of the ops.
#include "csrc/fuse/op_table.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <unordered_map>

#include "csrc/fuse/chosen_ops.h"
#include "csrc/fuse/exact_rows.h"
#include "csrc/fuse/extent.h"
#include "csrc/fuse/result_type.h"
#include "csrc/fuse/trials.h"

namespace lazyeng::fuse {
namespace {

using Table = std::unordered_map<std::string, OpRule>;

struct Row {
  const char* name;
  OpRule rule;
};

constexpr Row kRows[] = {
    {"abs", {Form::unary, Opcode::abs}},
    {"neg", {Form::unary, Opcode::neg}},
    {"sign", {Form::unary, Opcode::sign}},
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
    {"bitwise_and.Tensor", {Form::binary, Opcode::bit_and}},
    {"bitwise_and.Scalar", {Form::binary, Opcode::bit_and}},
    {"bitwise_or.Tensor", {Form::binary, Opcode::bit_or}},
    {"bitwise_or.Scalar", {Form::binary, Opcode::bit_or}},
    {"bitwise_xor.Tensor", {Form::binary, Opcode::bit_xor}},
    {"bitwise_xor.Scalar", {Form::binary, Opcode::bit_xor}},
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
    {"logical_not", {Form::logical_not, Opcode::logical_not}},
    {"isnan", {Form::is_nan, Opcode::ne}},
    {"where.self", {Form::where, Opcode::select}},
    {"masked_fill.Scalar", {Form::masked_fill, Opcode::select}},
    {"masked_fill.Tensor", {Form::masked_fill, Opcode::select}},
    {"clamp", {Form::clamp, Opcode::clamp}},
    {"clamp_min", {Form::clamp, Opcode::maximum}},
    {"clamp_max", {Form::clamp, Opcode::minimum}},
    {"hardtanh", {Form::clamp, Opcode::clamp}},
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
    {"mse_loss", {Form::mse_loss, Opcode::copy}},
    {"mse_loss_backward", {Form::mse_loss_backward, Opcode::copy}},
    {"var.correction", {Form::variance, Opcode::copy}},
    {"std.correction", {Form::variance, Opcode::sqrt}},
    {"var_mean.correction", {Form::variance_and_mean, Opcode::copy}},
    {"std_mean.correction", {Form::variance_and_mean, Opcode::sqrt}},
    {"logsumexp", {Form::logsumexp, Opcode::copy}},
    {"_softmax", {Form::softmax, Opcode::copy}},
    {"_log_softmax", {Form::log_softmax, Opcode::copy}},
    {"_softmax_backward_data", {Form::softmax_backward, Opcode::copy}},
    {"_log_softmax_backward_data", {Form::log_softmax_backward, Opcode::copy}},
    {"native_layer_norm", {Form::layer_norm, Opcode::copy}},
    {"native_layer_norm_backward", {Form::layer_norm_backward, Opcode::copy}},
};

/// "aten::add_.Tensor", the op that writes its first argument.
std::string in_place_name(const std::string& name) {
  const size_t dot = name.find('.');
  return dot == std::string::npos ? name + "_" : name.substr(0, dot) + "_" + name.substr(dot);
}

Table make_table() {
  Table table;
  for (const Row& row : kRows) {
    const std::string name = std::string("aten::") + row.name;
    table.emplace(name, row.rule);
    table.emplace(in_place_name(name), row.rule);
  }
  return table;
}

const Table& table() {
  static const Table* const made = new Table(make_table());
  return *made;
}

std::atomic<bool> inexact_on_cpu{false}, inexact_on_devices{true};

/// The order does not matter to integers, nor to an extreme value. But of 0.0 and -0.0 it decides
/// which one is found.
Bits bits_of_reduction(Form form, c10::ScalarType result) {
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
bool rows_were_tried(const OpRule& rule, const run::Node& node, int64_t row) {
  if (!has_exact_rows(rule.form) || !rows_pay(rule.form, row)) return false;
  // (Where nothing is left to divide by torch warns.)
  if (is_variance(rule.form) &&
      (row > kLongestRowOfVariance || correction_of(node) >= static_cast<double>(row)))
    return false;
  return has_rows_of_torch(rule, node, row);
}

/// The same of all elements, in the order of memory, which several threads share.
bool sum_was_tried(const OpRule& rule, const run::Node& node) {
  const run::Geometry& first = node.tensors[0].value->geometry();
  return has_exact_sum(rule.form) &&
         std::ranges::all_of(node.tensors, [&](const run::TensorArg& arg) {
           const run::Geometry& look = arg.value->geometry();
           return look.dense() && look.sizes() == first.sizes() &&
                  look.strides() == first.strides();
         });
}

bool reduction_was_tried(const OpRule& rule, const run::Node& node, c10::ScalarType dtype,
                         const Extent& extent) {
  if (!node.device.is_cpu() || !gives_torchs_bits(rule.form, dtype)) return false;
  for (const run::TensorArg& arg : node.tensors)
    if (arg.value ? arg.value->geometry().dtype() != dtype : arg.raw.defined()) return false;
  return extent.folds ? extent.places.totals == 1 && sum_was_tried(rule, node)
                      : rows_were_tried(rule, node, extent.row);
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
  for (const run::TensorArg& arg : node.tensors) {
    if (!arg.value || arg.value->geometry().dtype() != dtype) return false;
    const run::Geometry& look = arg.value->geometry();
    const run::Geometry& first = node.tensors[0].value->geometry();
    // (Of a tensor without dims torch takes the way of those with gaps.)
    dense &= look.dense() && !look.sizes().empty() && look.sizes() == first.sizes() &&
             look.strides() == first.strides();
  }
  return gives_torchs_bits(opcode, dtype, dense, dense && falls_into_whole_vectors(node));
}

/// With a weight of 1 the sign of a zero depends on which of torch's loops the number gets into.
bool has_weight_other_than_one(const run::Node& node, c10::ScalarType dtype) {
  if (!node.args[2].isScalar()) return false;  // a tensor may hold it
  const double weight = node.args[2].toScalar().toDouble();
  return dtype == c10::kFloat ? static_cast<float>(weight) != 1 : weight != 1;
}

bool gives_same_bits(const OpRule& rule, const run::Node& node, c10::ScalarType result) {
  if (rule.form == Form::mse_loss_backward) return false;
  // Of 0.0 and -0.0 torch takes the second in whole vectors, and the first in what is left over.
  if (rule.form == Form::binary &&
      (rule.opcode == Opcode::maximum || rule.opcode == Opcode::minimum))
    return !c10::isFloatingType(result);
  // Narrow dtypes are rounded after each of several operations, or only after the last.
  if (is_narrow(result) && (rule.form == Form::power || rule.opcode == Opcode::rsqrt ||
                            rule.opcode == Opcode::sigmoid_backward))
    return false;
  if (rule.form == Form::power && node.args[1].isScalar()) {
    const double exponent = node.args[1].toScalar().toDouble();
    constexpr double kProductsAndRoots[] = {-2, -1, -0.5, 0, 1, 2, 3};  // see pointwise_forms.cpp
    return std::ranges::find(kProductsAndRoots, exponent) != std::end(kProductsAndRoots);
  }
  if (rule.form == Form::binary_scaled || rule.form == Form::reversed) {
    const size_t alpha = node.args.size() - 1;  // rsub has one, too
    if (!node.args[alpha].isScalar()) return false;
    return node.args[alpha].toScalar().equal(1) ||
           was_tried(Opcode::add_scaled, node, result, node.args[1].isScalar());
  }
  if (rule.opcode == Opcode::lerp && !has_weight_other_than_one(node, result)) return false;
  const bool tanh =
      rule.form == Form::gelu && node.args[1].isString() && node.args[1].toStringView() == "tanh";
  if (was_tried(tanh ? Opcode::gelu_tanh : rule.opcode, node, result)) return true;
  switch (rule.opcode) {
    case Opcode::relu:
    case Opcode::leaky_relu:
      return true;
    case Opcode::sqrt:
    case Opcode::pow:
    case Opcode::lerp:
    case Opcode::addcmul:
    case Opcode::addcdiv:
    case Opcode::tanh_backward:
    case Opcode::silu_backward:
    case Opcode::gelu_backward:
    case Opcode::gelu_tanh_backward:
      return false;
    default:
      return rule.opcode < Opcode::exp || rule.opcode > Opcode::hardsigmoid;
  }
}

}  // namespace

void set_inexact(bool on_cpu) { inexact_on_cpu.store(on_cpu, std::memory_order_relaxed); }
void set_inexact_on_devices(bool on) { inexact_on_devices.store(on, std::memory_order_relaxed); }
bool allows_inexact(c10::Device device) {
  return (device.is_cpu() ? inexact_on_cpu : inexact_on_devices).load(std::memory_order_relaxed);
}

bool may_join(const run::Node& node) {
  if (begins_pair(node) || lists_of(node) != 0) return true;
  const OpRule* rule = rule_of(node.info);
  if (!rule || !is_reduction(rule->form) || allows_inexact(node.device)) return rule != nullptr;
  if (node.outputs.empty() || !node.outputs[0]) return false;
  const c10::ScalarType dtype = node.outputs[0]->geometry().dtype();
  return bits_of_reduction(rule->form, dtype) != Bits::other ||
         gives_torchs_bits(rule->form, dtype);
}

Bits bits_of(const OpRule& rule, const run::Node& node, c10::ScalarType result,
             const Extent& extent) {
  if (is_reduction(rule.form))
    return reduction_was_tried(rule, node, result, extent) ? Bits::same
                                                           : bits_of_reduction(rule.form, result);
  return gives_same_bits(rule, node, result) ? Bits::same : Bits::other;
}

const OpRule* rule_of(const run::OpInfo& info) {
  const void* known = info.fuse_rule.load(std::memory_order_acquire);
  if (!known) {
    const auto found = table().find(info.name);
    // (The table itself stands for "looked up, and not there".)
    known = found == table().end() ? static_cast<const void*>(&table()) : &found->second;
    info.fuse_rule.store(known, std::memory_order_release);
  }
  return known == &table() ? nullptr : static_cast<const OpRule*>(known);
}

std::map<std::string, OpRule> all_rules() { return {table().begin(), table().end()}; }

}  // namespace lazyeng::fuse
