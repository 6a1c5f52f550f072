// csrc/fuse/tiles/tile_kernel.h: the kernels that a tile program is made of.
//
// A kernel does one step for one tile: it reads up to kMaxInputs registers and writes one. A
// register is a run of elements in memory (scratch, or the memory of a tensor itself), or one
// element repeated kLanes times (a *splat*), which stands for a tensor of any length.
//
// Registers never hold float16 or bfloat16: those are widened to float32 when loaded, and after
// each op rounded as torch rounds them (Opcode::round_f16, round_bf16), so that the float32 value
// is always one that the narrow type can hold, and the final narrowing is exact.
//
// The file tile_kernels.inc is compiled once for each instruction set, as torch compiles its own
// kernels, from the same at::vec; best_kernels() chooses at run time as torch does.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lazyeng::fuse {

/// Elements that a kernel handles at once; the last ones of a tile are copied to a buffer of that
/// length.
inline constexpr int64_t kLanes = 32;
inline constexpr int kMaxInputs = 4;

/// What a register holds, in the order of torch's promotion; the two last stand in memory only.
enum class Type : uint8_t { b8, u8, i8, i16, i32, i64, f32, f64, f16, bf16 };

constexpr size_t size_of(Type type) {
  constexpr size_t sizes[] = {1, 1, 1, 2, 4, 8, 4, 8, 2, 2};
  return sizes[static_cast<int>(type)];
}

// clang-format off
enum class Opcode : uint8_t {
  copy,
  // arithmetic
  add, sub, mul, div, add_scaled,  ///< a + b * c
  neg, abs, square, reciprocal, sqrt, rsqrt, maximum, minimum, clamp, sign, pow,
  floor, ceil, trunc, round, addcmul, addcdiv, lerp,
  frac, copysign, fmax, fmin, fmod, remainder, floor_divide, heaviside, nan_to_num,
  trunc_divide, shift_left, shift_right,  ///< of integers
  // functions
  exp, exp_u20, exp2, expm1, log, log2, log10, log1p, sin, cos, tan, tanh, sinh, cosh, erf, erfc,
  acos, acosh, asin, asinh, atan, atanh, atan2, hypot, erfinv, lgamma, logaddexp, logaddexp2, xlogy, xlog1py,
  sigmoid, log_sigmoid, relu, gelu, gelu_tanh, silu, mish, leaky_relu, elu, softplus, hardswish, hardsigmoid,
  shrink,  ///< the first, 0 where the second is within the third of 0
  softshrink,
  // of two tensors, losses before they are summed
  smooth_l1, huber,
  // their derivatives: of the gradient and, as torch saves it, the input or the result
  threshold_backward, tanh_backward, sigmoid_backward, silu_backward, gelu_backward,
  gelu_tanh_backward, leaky_relu_backward, mish_backward, hardswish_backward, hardsigmoid_backward,
  hardtanh_backward, softplus_backward, log_sigmoid_backward,
  elu_slope, elu_slope_of_result,  ///< what the gradient is multiplied by
  smooth_l1_backward, huber_backward,  ///< of gradient, difference, bound and factor
  // to bool; select takes a bool first
  eq, ne, lt, le, gt, ge, logical_and, logical_or, logical_xor, logical_not, sign_bit, select,
  bit_and, bit_or, bit_xor, bit_not,
  // of a splat whose halves differ, one for all; the same of splats of two lanes
  first_half, second_half, first_of_two, second_of_two,
  // to the nearest value that the narrow type can hold
  round_f16, round_bf16,
  // to the type of the result (KernelSet::cast has the kernels)
  cast,
};
// clang-format on

/// "add", "f32": as the enums above spell them.
const char* name_of(Opcode opcode);
const char* name_of(Type type);

struct KernelArgs {
  char* out;
  const char* in[kMaxInputs];
  int64_t step[kMaxInputs];  ///< 1, or 0 for a splat
  int64_t n;                 ///< elements
  /// Set by a kernel that has met operands that its op raises an error for (or see
  /// KernelSet::checking): what it writes then is worth nothing.
  bool* refused;
};
using Kernel = void (*)(const KernelArgs& args);

/// All elements into one. Integers and bool are folded in int64, floats in double from tile to tile
/// and within a tile in kLanes sums side by side, of the type of the register.
enum class Fold : uint8_t { sum, product, maximum, minimum };
const char* name_of(Fold fold);
struct Total {
  double real;
  int64_t integer;
  /// Of a maximum or minimum of floats that is zero: a zero with a sign was there, or (where
  /// denormals count as zero) one that is not zero. Which one torch finds depends on its order.
  bool other_zero = false;
};
/// What nothing folds to.
Total empty_total(Fold fold);
/// Adds the n elements to the total. NaN wins over any maximum and minimum. Products are of
/// integers.
using FoldKernel = void (*)(const char* in, int64_t n, Total& total);

/// Totals side by side, as in Total: those of one kind.
struct ColumnTotals {
  double* real;
  int64_t* integer;
  uint8_t* other_zero;  ///< whatever the total is
};
/// Rows, which lie one behind the other, are added column by column to parts, which are as narrow
/// as a few rows allow; these to the totals.
struct ColumnsKernel {
  /// `zeros`, of a maximum or minimum of floats: what Total::other_zero tells of, as bits.
  void (*add)(const char* in, int64_t rows, int64_t columns, char* parts, char* zeros) = nullptr;
  /// The parts are what nothing folds to.
  void (*clear)(char* parts, int64_t n) = nullptr;
  void (*add_to_totals)(const char* parts, const char* zeros, int64_t n,
                        const ColumnTotals& totals) = nullptr;
  int64_t rows = 0;  ///< that parts may hold
  size_t item = 0;   ///< bytes of a part, and of its zeros
};

// ---- folds of rows in the order of torch's kernels (row_kernels.inc), and what is made of whole
// ---- rows at once (whole_row_kernels.inc)

enum class RowFold : uint8_t {
  none,
  cascade_sum,        ///< as torch's sum
  moments,            ///< as torch's layer_norm: mean and 1 / deviation; (rows, eps)
  running_variance,   ///< as torch's var: variance, whose divisor is an argument, and mean
  running_deviation,  ///< the same, the variance's root
  // no folds: these make rows
  softmax,
  log_softmax,
  softmax_backward,      ///< (gradient, result)
  log_softmax_backward,  ///< the same
  normalise,             ///< (rows, their moments, bias)
  normalise_and_scale,   ///< (rows, their moments, bias, weight)
  one_hot,  ///< rows of 0, but at the place that the second (int64) names what the first
            ///< has, times a weight of the place if there is a third
  // of rows that are layers, one behind the other, along these (csrc/fuse/tiles/across_kernels.inc)
  softmax_across,
  log_softmax_across,
};
constexpr bool makes_rows(RowFold fold) { return fold >= RowFold::softmax; }
/// Whether the k-th input is the rows. (What is added to all rows, or multiplied by, is shared.)
constexpr bool reads_rows(RowFold fold, int k) {
  if (fold == RowFold::one_hot) return false;
  return k == 0 ||
         (k == 1 && (fold == RowFold::softmax_backward || fold == RowFold::log_softmax_backward));
}

struct RowsArgs {
  char* out;                   ///< rows; or a splat for each, of two results each has half of it
  const char* in[kMaxInputs];  ///< null: there is none
  /// Elements from a row of an input to the next, and from an element to the next. A splat for each
  /// row has `lanes` and 0, one for all 0 and 0, what all rows share 0 and 1.
  int64_t next_row[kMaxInputs];
  int64_t step[kMaxInputs];
  int64_t lanes;  ///< of a splat in `out`
  int64_t row;    ///< elements of each
  int64_t rows;   ///< how many
  double divisor;
  int64_t ignored;  ///< of one_hot: a place that stands for none
  int64_t inner;    ///< elements of a layer
  bool* refused;    ///< as KernelArgs::refused: a place that no row has
};
/// Reads and writes elements of one type. Those of float16 and bfloat16 come as float32, and what
/// is made of them is not rounded.
using RowsKernel = void (*)(const RowsArgs& args);

/// The sum of many elements of one type, which come in order, in as many parts as one likes. Those
/// of float16 and bfloat16 come as float32, as does their sum, which is rounded.
struct SumKernel {
  size_t bytes;  ///< of a state, aligned as a cache line is
  void (*begin)(char* state, int64_t elements);
  void (*add)(char* state, const char* in, int64_t n);
  void (*finish)(char* state, char* sum);
  /// What each of torch's threads has found.
  void (*join)(const char* sums, int64_t n, char* sum);
};

// ---- chains (csrc/fuse/tiles/chains.h)

inline constexpr size_t kMaxLinks = 64;
/// Of operands in memory, of all links of a chain together.
inline constexpr size_t kMaxChainOperands = 12;
/// The value that a chain hands on is every operand of a link.
inline constexpr int kEveryPlace = -1;

/// A function of the instruction set's file, whatever it takes.
using LinkFunction = void (*)();
/// One step of a chain. The operand that is the value has step 0, as splats have.
struct Link {
  LinkFunction run;
  const char* in[kMaxInputs];  ///< of the last link: where the value goes
  int64_t step[kMaxInputs];    ///< as KernelArgs::step
  size_t item[kMaxInputs];     ///< bytes of an element in memory
};
struct ChainArgs {
  const Link* links;  ///< the first loads the value, the last stores it or adds it to a sum
  size_t count;
  Type out_type;  ///< in memory: float32 may go to a narrow type
  int64_t n;      ///< elements
  const SumKernel* sum = nullptr;
};
/// Of values of one type.
struct ChainKernels {
  void (*run)(const ChainArgs& args);
  /// Null: there is none for the type in memory, for the operation, for the value at that place.
  LinkFunction (*first)(Type memory);
  /// `memory`: the type of the other operand, which is widened as it is read.
  LinkFunction (*link)(Opcode opcode, int place, Type memory);
  LinkFunction (*last)(Type memory);
  /// Adds the value to the state of the SumKernel of this type.
  LinkFunction (*sum)(Type memory);
  /// As that of Opcode::round_bf16, for values whose NaNs have nothing in their lower half.
  LinkFunction (*rounds_short_nans)();
};

/// The kernels of one instruction set. A null kernel: there is none for the type.
struct KernelSet {
  const char* name;
  Kernel (*kernel)(Opcode opcode, Type type);
  /// Of steps whose result depends on which of torch's loops an element comes into, for some
  /// values: the same, but it refuses these.
  Kernel (*checking)(Opcode opcode, Type type);
  Kernel (*cast)(Type from, Type to);
  FoldKernel (*fold)(Fold fold, Type type);
  ColumnsKernel (*columns)(Fold fold, Type type);
  const ChainKernels* (*chains)(Type type);
  RowsKernel (*rows)(RowFold fold, Type memory);
  const SumKernel* (*sum)(Type memory);  ///< null: there is none
};

namespace isa {
const KernelSet& generic();
const KernelSet* avx2();  ///< null if this build has none
const KernelSet* avx512();
}  // namespace isa

/// What torch uses on this machine (ATEN_CPU_CAPABILITY included).
const KernelSet& best_kernels();
/// Torch compiles its sum and its layer_norm for AVX2, and takes them with AVX512 as well.
RowsKernel rows_kernel(RowFold fold, Type memory);

}  // namespace lazyeng::fuse
