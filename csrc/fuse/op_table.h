// csrc/fuse/op_table.h: which ops a tile program can do, and in what form each takes its arguments.
#pragma once

#include <map>
#include <string>

#include "csrc/fuse/tiles/tile_kernel.h"
#include "csrc/run/node.h"

namespace lazyeng::fuse {

/// How the arguments of an op become registers. "number": a Scalar argument.
enum class Form : uint8_t {
  unary,           ///< of one tensor, in its own dtype
  unary_float,     ///< the same; integers become the default dtype
  binary,          ///< (tensor, tensor or number), in their common dtype; one may be the number
  binary_float,    ///< the same; integers become the default dtype
  binary_scaled,   ///< the same, and alpha
  reversed,        ///< rsub: the second minus alpha times the first
  divide,          ///< true division
  divide_rounded,  ///< the same, and how the quotient is rounded
  floor_divide,
  compare,  ///< binary, to bool
  unary_to_bool,
  is_nan,
  is_infinite,    ///< whether what the opcode makes of the tensor is infinity
  where,          ///< (condition, tensor, tensor)
  masked_fill,    ///< (tensor, mask, number or tensor of one element)
  clamp,          ///< (tensor, number?, number?)
  clamp_tensors,  ///< (tensor, tensor?, tensor?)
  clamp_tensor,   ///< (tensor, tensor): that is the only bound
  threshold,      ///< (tensor, number, number)
  nan_to_num,     ///< (tensor, number?, number?, number?)
  with_numbers,   ///< tensors, in their common dtype, and numbers, in the order of the kernel's
  power,          ///< (tensor, number)
  to_radians,
  to_degrees,
  hardshrink,      ///< (tensor, number)
  celu,            ///< (tensor, number)
  elu_backward,    ///< (grad, number, number, number, whether of the result, tensor)
  log_sigmoid,     ///< and what its derivative is made of
  prelu_backward,  ///< (grad, tensor, slopes), and the gradient of the slopes
  logit,           ///< (tensor, number?)
  gelu,            ///< (tensor, approximate)
  gelu_backward,   ///< (grad, tensor, approximate)
  cast,            ///< _to_copy, clone, copy_: the last tensor, in the dtype of the result
  fill,            ///< (tensor that is not read, number)
  zero,
  one,
  mse_loss_backward,  ///< (grad, tensor, tensor, reduction)
  loss_backward,      ///< the same, and a bound
  dropout_backward,   ///< (grad, mask, number)
  // Reductions (csrc/fuse/extent.h): a tensor, and dims if it may keep some.
  sum,
  product,  ///< of integers
  mean,
  maximum,
  minimum,
  any,
  all,
  mse_loss,           ///< (tensor, tensor, reduction)
  loss,               ///< of two tensors, by the opcode; maybe a bound; reduced as an argument says
  nll_loss,           ///< (tensor, target, weight?, reduction, ignored target); and all the weight
  variance,           ///< (tensor, dims, correction, keepdim); sqrt: the standard deviation
  variance_and_mean,  ///< the same, with the mean as a second result
  logsumexp,          ///< (tensor, dims, keepdim)
  softmax,            ///< (tensor, dim, half to float)
  log_softmax,        ///< the same
  softmax_backward,   ///< (grad, result, dim, dtype of the input)
  log_softmax_backward,  ///< the same
  nll_loss_backward,  ///< (grad, tensor, target, weight?, reduction, ignored target, total weight)
  layer_norm,         ///< (tensor, normalized shape, weight?, bias?, eps); and mean and 1/std
  /// (grad, tensor, normalized shape, mean, 1/std, weight?, bias?, mask); those of weight and bias,
  /// too. What the mask leaves out is not returned.
  layer_norm_backward,
};

/// Whether the op reduces a tensor, to one element or along dims.
constexpr bool is_reduction(Form form) { return form >= Form::sum; }
/// Of these, what only folds its elements: into one, or one for each place that is kept.
constexpr bool is_plain_fold(Form form) { return form >= Form::sum && form <= Form::all; }
/// Of these, what has a result as large as its argument.
constexpr bool is_normalization(Form form) { return form >= Form::softmax; }

constexpr bool is_loss(Form form) { return form == Form::mse_loss || form == Form::loss; }
constexpr bool is_variance(Form form) {
  return form == Form::variance || form == Form::variance_and_mean;
}

/// Of Form::divide_rounded.
enum class Rounding : uint8_t { none, to_zero, down };
Rounding rounding_of(const run::Node& node);

/// Whether it reduces nothing after all.
bool is_unreduced(Form form, const run::Node& node);

struct OpRule {
  Form form;
  Opcode opcode;
};

struct Extent;

/// Whether a program gives torch's bits.
enum class Bits : uint8_t {
  same,
  checked,  ///< unless the program says that they may differ (run_program)
  other,
};
/// Of functions torch has several versions: for whole vectors, for what is left over, for memory
/// with gaps. So it is with a product that is added to something, which is rounded in between, or
/// is not: what cannot be known is tried (csrc/fuse/bits/trials.h). And a sum of floats has an
/// order. `result` is the dtype of the result.
Bits bits_of(const OpRule& rule, const run::Node& node, c10::ScalarType result,
             const Extent& extent);

/// Whether the op raises an error for some values that it may meet: its group must be able to run
/// once more, one op by one. `result` as above.
bool may_refuse(const OpRule& rule, const run::Node& node, c10::ScalarType result);

/// Whether the program is to refuse values that torch's own loops disagree on.
bool refuses_doubtful(const OpRule& rule, const run::Node& node, c10::ScalarType result);

/// Whether groups may hold what they round otherwise than torch's own kernels do: on the CPU, and
/// on other devices. Any thread.
void set_inexact(bool on_cpu);
void set_inexact_on_devices(bool on);
bool allows_inexact(c10::Device device);

/// Whether it pays to wait for what the op may be fused with.
bool may_join(const run::Node& node);
/// The same of a call that has no node, for most of them: a guess. `result` is the first one's.
bool usually_joins(const run::OpInfo& info, const run::Geometry& result);

/// Null: the op never joins a group.
const OpRule* rule_of(const run::OpInfo& info);

/// How often it has changed which ops join groups, and under which conditions: what was found out
/// with another version does not hold. Any thread.
uint64_t rules_version();
void rules_changed();

/// All of them, by the names of the ops.
std::map<std::string, OpRule> all_rules();

}  // namespace lazyeng::fuse
