// csrc/fuse/names.cpp: what programs are made of, by name, for those who read one (lazyeng/fuse).
#include <iterator>

#include "csrc/fuse/tiles/tile_kernel.h"

namespace lazyeng::fuse {
namespace {

// In the order of the enums, which the assertions below hold to them.
// clang-format off
constexpr const char* kOpcodes[] = {
    "copy", "add", "sub", "mul", "div", "add_scaled", "neg", "abs", "square", "reciprocal", "sqrt",
    "rsqrt", "maximum", "minimum", "clamp", "sign", "pow", "floor", "ceil", "trunc", "round",
    "addcmul", "addcdiv", "lerp", "frac", "copysign", "fmax", "fmin", "fmod", "remainder",
    "floor_divide", "heaviside", "nan_to_num", "trunc_divide", "shift_left", "shift_right", "exp",
    "exp_u20", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "tanh",
    "sinh", "cosh", "erf", "erfc", "acos", "acosh", "asin", "asinh", "atan", "atanh", "atan2",
    "hypot", "erfinv", "lgamma", "logaddexp", "logaddexp2", "xlogy", "xlog1py", "sigmoid",
    "log_sigmoid", "relu", "gelu", "gelu_tanh", "silu", "mish", "leaky_relu", "elu", "softplus",
    "hardswish", "hardsigmoid", "shrink", "softshrink", "smooth_l1", "huber", "threshold_backward",
    "tanh_backward", "sigmoid_backward", "silu_backward", "gelu_backward", "gelu_tanh_backward",
    "leaky_relu_backward", "mish_backward", "hardswish_backward", "hardsigmoid_backward",
    "hardtanh_backward", "softplus_backward", "log_sigmoid_backward", "elu_slope",
    "elu_slope_of_result", "smooth_l1_backward", "huber_backward", "eq", "ne", "lt", "le", "gt",
    "ge", "logical_and", "logical_or", "logical_xor", "logical_not", "sign_bit", "select",
    "bit_and", "bit_or", "bit_xor", "bit_not",
    "first_half", "second_half", "first_of_two",
    "second_of_two", "round_f16", "round_bf16", "cast",
};
// clang-format on
constexpr const char* kTypes[] = {"b8",  "u8",  "i8",  "i16", "i32",
                                  "i64", "f32", "f64", "f16", "bf16"};
constexpr const char* kFolds[] = {"sum", "product", "maximum", "minimum"};

static_assert(std::size(kOpcodes) == static_cast<size_t>(Opcode::cast) + 1);
static_assert(std::size(kTypes) == static_cast<size_t>(Type::bf16) + 1);
static_assert(std::size(kFolds) == static_cast<size_t>(Fold::minimum) + 1);

}  // namespace

const char* name_of(Opcode opcode) { return kOpcodes[static_cast<size_t>(opcode)]; }
const char* name_of(Type type) { return kTypes[static_cast<size_t>(type)]; }
const char* name_of(Fold fold) { return kFolds[static_cast<size_t>(fold)]; }

}  // namespace lazyeng::fuse
