// csrc/fuse/bits/step_trials.cpp: torch's kernels and the steps that stand for them, on the same
// numbers.
#include "csrc/fuse/bits/step_trials.h"

#include <ATen/Functions.h>
#include <ATen/core/Reduction.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "csrc/fuse/bits/torch_functions.h"
#include "csrc/fuse/bits/trial_numbers.h"
#include "csrc/fuse/bits/trials.h"
#include "csrc/fuse/tiles/tile_program.h"

namespace lazyeng::fuse {
namespace {

using Tensors = std::vector<at::Tensor>;

/// How torch computes what an opcode stands for.
struct Oracle {
  Opcode opcode;
  size_t tensors;
  bool number;  ///< and a number, the last input of the step
  void (*eager)(at::Tensor& out, const Tensors& in, const at::Scalar& number);
};

#define LAZYENG_FUNCTION(name) \
  {Opcode::name, 1, false,     \
   [](at::Tensor& out, const Tensors& in, const at::Scalar&) { at::name##_out(out, in[0]); }}
#define LAZYENG_OF_RESULT(name)                                                        \
  {Opcode::name, 2, false, [](at::Tensor& out, const Tensors& in, const at::Scalar&) { \
     at::name##_out(out, in[0], in[1]);                                                \
   }}
#define LAZYENG_SCALED(name, tensors, ...) \
  {Opcode::name, tensors, true,            \
   [](at::Tensor& out, const Tensors& in, const at::Scalar& number) { __VA_ARGS__; }}

constexpr Oracle kOracles[] = {
    LAZYENG_FUNCTION(sqrt),
    LAZYENG_FUNCTION(exp),
    LAZYENG_FUNCTION(exp2),
    LAZYENG_FUNCTION(expm1),
    LAZYENG_FUNCTION(log),
    LAZYENG_FUNCTION(log2),
    LAZYENG_FUNCTION(log10),
    LAZYENG_FUNCTION(log1p),
    LAZYENG_FUNCTION(sin),
    LAZYENG_FUNCTION(cos),
    LAZYENG_FUNCTION(tan),
    LAZYENG_FUNCTION(tanh),
    LAZYENG_FUNCTION(sinh),
    LAZYENG_FUNCTION(cosh),
    LAZYENG_FUNCTION(erf),
    LAZYENG_FUNCTION(erfc),
    LAZYENG_FUNCTION(sigmoid),
    LAZYENG_FUNCTION(silu),
    LAZYENG_FUNCTION(hardswish),
    LAZYENG_FUNCTION(hardsigmoid),
    LAZYENG_FUNCTION(acos),
    LAZYENG_FUNCTION(acosh),
    LAZYENG_FUNCTION(asin),
    LAZYENG_FUNCTION(asinh),
    LAZYENG_FUNCTION(atan),
    LAZYENG_FUNCTION(atanh),
    LAZYENG_FUNCTION(erfinv),
    LAZYENG_FUNCTION(lgamma),
    LAZYENG_FUNCTION(mish),
    LAZYENG_FUNCTION(log_sigmoid),
    LAZYENG_OF_RESULT(atan2),
    LAZYENG_OF_RESULT(hypot),
    LAZYENG_OF_RESULT(logaddexp),
    LAZYENG_OF_RESULT(logaddexp2),
    LAZYENG_OF_RESULT(xlogy),
    LAZYENG_OF_RESULT(hardswish_backward),
    LAZYENG_OF_RESULT(hardsigmoid_backward),
    {Opcode::gelu, 1, false,
     [](at::Tensor& out, const Tensors& in, const at::Scalar&) { at::gelu_out(out, in[0]); }},
    {Opcode::gelu_tanh, 1, false,
     [](at::Tensor& out, const Tensors& in, const at::Scalar&) {
       at::gelu_out(out, in[0], "tanh");
     }},
    LAZYENG_OF_RESULT(tanh_backward),
    LAZYENG_OF_RESULT(silu_backward),
    LAZYENG_SCALED(add_scaled, 2, at::add_out(out, in[0], in[1], number)),
    LAZYENG_SCALED(addcmul, 3, at::addcmul_out(out, in[0], in[1], in[2], number)),
    LAZYENG_SCALED(addcdiv, 3, at::addcdiv_out(out, in[0], in[1], in[2], number)),
    LAZYENG_SCALED(lerp, 2, at::lerp_out(out, in[0], in[1], number)),
    LAZYENG_SCALED(softshrink, 1, at::softshrink_out(out, in[0], number)),
    LAZYENG_SCALED(
        smooth_l1, 2,
        at::smooth_l1_loss_out(out, in[0], in[1], at::Reduction::None, number.toDouble())),
    LAZYENG_SCALED(huber, 2,
                   at::huber_loss_out(out, in[0], in[1], at::Reduction::None, number.toDouble())),
    {Opcode::xlog1py, 2, false,
     [](at::Tensor& out, const Tensors& in, const at::Scalar&) {
       at::special_xlog1py_out(out, in[0], in[1]);
     }},
    {Opcode::log_sigmoid_backward, 3, false,
     [](at::Tensor& out, const Tensors& in, const at::Scalar&) {
       at::log_sigmoid_backward_out(out, in[0], in[1], in[2]);
     }},
};
#undef LAZYENG_FUNCTION
#undef LAZYENG_OF_RESULT
#undef LAZYENG_SCALED

constexpr double kNumbers[] = {0.3, -2.5, 1};
/// From 0.5 on lerp has another formula. (Of a weight of 1 nobody asks: csrc/fuse/bits/bits.cpp.)
constexpr double kWeights[] = {0.3, -2.5, 0.7};

/// Of what is linear beyond it.
constexpr double kBounds[] = {0.3, 2.5, 1};

double number_for(const Oracle& oracle, size_t which) {
  switch (oracle.opcode) {
    case Opcode::lerp:
      return kWeights[which];
    case Opcode::softshrink:
    case Opcode::smooth_l1:
    case Opcode::huber:
      return kBounds[which];
    default:
      return kNumbers[which];
  }
}

// ---- our way

/// How the step stands in a program.
struct Place {
  bool link = false;  ///< of a chain, if it can be one
  int splat = -1;     ///< this tensor has one number
};

/// What the step makes of contiguous tensors of one size.
template <class T>
at::Tensor by_program(const Oracle& oracle, const Tensors& in, double number, Place place = {}) {
  constexpr Type type = std::is_same_v<T, float> ? Type::f32 : Type::f64;
  const at::Tensor& like = in[place.splat == 0 ? 1 : 0];
  ProgramBuilder builder(best_kernels(), like.numel(), 0, {});
  RegisterId regs[kMaxInputs] = {};
  Bindings bindings;
  alignas(64) T splats[2][kSplatBytes / sizeof(T)];
  bindings.splats = reinterpret_cast<char*>(splats);
  size_t count = 0, parameters = 0;
  const auto add_parameter = [&](T value) {
    std::ranges::fill(splats[parameters++], value);
    return builder.parameter(type);
  };
  for (const at::Tensor& tensor : in) {
    if (static_cast<int>(count) == place.splat) {
      regs[count++] = add_parameter(*tensor.const_data_ptr<T>());
      continue;
    }
    regs[count++] = builder.load({.type = type, .strides = {}});
    bindings.tensors.push_back(static_cast<char*>(tensor.mutable_data_ptr()));
  }
  if (oracle.number) regs[count++] = add_parameter(static_cast<T>(number));
  const Kernel torchs = torch_function(oracle.opcode, type);
  const auto step = [&](std::initializer_list<RegisterId> inputs) {
    return builder.step(oracle.opcode, type, type, inputs, torchs);
  };
  RegisterId made = count == 1   ? step({regs[0]})
                    : count == 2 ? step({regs[0], regs[1]})
                    : count == 3 ? step({regs[0], regs[1], regs[2]})
                                 : step({regs[0], regs[1], regs[2], regs[3]});
  if (place.link) made = builder.step(Opcode::copy, type, type, {made});
  builder.store(made, {.type = type, .strides = {}});
  TORCH_CHECK(builder.ok(), "no kernel");
  const Program program = std::move(builder).finish();
  at::Tensor result = at::empty_like(like);
  bindings.tensors.push_back(static_cast<char*>(result.mutable_data_ptr()));
  run_program(program, bindings, Cores::one);
  return result;
}

// ---- both ways

/// Rows of the numbers, as they lie in the memory of each tensor.
struct Layout {
  int64_t columns, row_stride, stride;
  bool in_place = false;
};
/// In rows that are shorter than two vectors torch goes number by number, as at the end of longer
/// ones, and of each thread's share of them: in a loop that is compiled on its own, perhaps in one
/// more where the result takes the place of an argument.
constexpr Layout kDense[] = {{7, 8, 1},   {15, 16, 1, true},
                             {31, 32, 1}, {31, 32, 1, true},
                             {77, 80, 1}, {kTrialNumbers, kTrialNumbers, 1, true}};
constexpr int64_t kLengths[] = {1, 3, 5, 9, 13, 19, 27, 33, 51, 65, 1001};
/// Nothing is left over of whole vectors, whatever their size.
constexpr Layout kWhole[] = {
    {kTrialNumbers / kWholeVectors * kWholeVectors, kTrialNumbers, 1},
    {kWholeVectors, kWholeVectors, 1},
    {kTrialNumbers / kWholeVectors * kWholeVectors, kTrialNumbers, 1, true}};
/// Another loop.
constexpr Layout kWithGaps[] = {{31, 64, 2}, {101, 303, 3, true}};

at::Tensor rows(const at::Tensor& memory, const Layout& layout) {
  return memory.as_strided({kTrialNumbers / layout.row_stride, layout.columns},
                           {layout.row_stride, layout.stride});
}

/// Torch's kernel and the step, with one number.
template <class T>
class Comparison {
 public:
  Comparison(const Oracle& oracle, const Tensors& in, double number)
      : oracle_(oracle), in_(in), number_(number), ours_(by_program<T>(oracle, in, number)) {}

  /// The step gives the same bits wherever it stands.
  bool agrees_with_itself() const {
    if (!same_as_ours(by_program<T>(oracle_, in_, number_, {.link = true}))) return false;
    for (size_t i = 0; i < in_.size() && in_.size() > 1; ++i)
      for (int64_t which = 0; which < 8; ++which)
        if (!agrees_with_splat(i, which)) return false;
    return true;
  }

  bool agree_on_whole() const {
    return std::ranges::all_of(kWhole, [this](const Layout& layout) { return agree(layout); });
  }

  bool agree_on_dense() const {
    return std::ranges::all_of(kDense, [this](const Layout& layout) { return agree(layout); });
  }

  /// Those that lie alone in memory.
  bool agree_on_lengths() const {
    int64_t begin = 0;
    for (const int64_t length : kLengths) {
      Tensors cut;
      for (const at::Tensor& tensor : in_) cut.push_back(tensor.narrow(0, begin, length));
      at::Tensor theirs = at::empty_like(cut[0]);
      oracle_.eager(theirs, cut, number_);
      if (!same_bits<T>(ours_.narrow(0, begin, length).view({1, length}), theirs.view({1, length})))
        return false;
      begin += length;
    }
    return true;
  }

  bool agree_on_gaps() const {
    return std::ranges::all_of(kWithGaps, [this](const Layout& layout) { return agree(layout); });
  }

  /// A tensor that has one number for each row: alone, of these torch has loops of their own, and
  /// together with others.
  bool agree_on_expanded() const {
    for (unsigned which = 1; which < 1u << in_.size(); ++which)
      if (!agree_on_expanded(which)) return false;
    return true;
  }

 private:
  bool same_as_ours(const at::Tensor& made) const {
    return same_bits<T>(ours_.view({1, kTrialNumbers}), made.view({1, kTrialNumbers}));
  }

  /// Of one tensor one number, in each element or as the tensor's only one.
  bool agrees_with_splat(size_t of, int64_t which) const {
    constexpr int64_t kSome = 512;
    Tensors given;
    for (const at::Tensor& tensor : in_) given.push_back(tensor.narrow(0, 0, kSome));
    Tensors one = given;
    one[of] = in_[of].narrow(0, kSome + which, 1);
    given[of] = one[of].expand({kSome}).contiguous();
    const at::Tensor made = by_program<T>(oracle_, given, number_).view({1, kSome});
    for (const bool link : {false, true}) {
      const Place place{link, static_cast<int>(of)};
      if (!same_bits<T>(made, by_program<T>(oracle_, one, number_, place).view({1, kSome})))
        return false;
    }
    return true;
  }

  bool agree(const Layout& layout) const {
    Tensors given;
    for (const at::Tensor& tensor : in_) given.push_back(rows(tensor, layout));
    at::Tensor theirs = layout.in_place      ? rows(in_[0].clone(), layout)
                        : layout.stride == 1 ? rows(at::empty_like(in_[0]), layout)
                                             : at::empty(given[0].sizes(), given[0].options());
    if (layout.in_place) given[0] = theirs;
    oracle_.eager(theirs, given, number_);
    return same_bits<T>(rows(ours_, layout), theirs);
  }

  /// `which`: a bit for each tensor.
  bool agree_on_expanded(unsigned which) const {
    // Two vectors and some more numbers; rows overlap.
    constexpr int64_t kColumns = 39, kRowStride = 16;
    const int64_t rows = std::has_single_bit(which) ? 200 : 50;
    Tensors given, dense;
    for (size_t i = 0; i < in_.size(); ++i) {
      const bool expanded = which >> i & 1;
      given.push_back(expanded ? in_[i].as_strided({rows, kColumns}, {1, 0})
                               : in_[i].as_strided({rows, kColumns}, {kRowStride, 1}));
      dense.push_back(given[i].contiguous());
    }
    at::Tensor theirs = at::empty_like(dense[0]);
    oracle_.eager(theirs, given, number_);
    return same_bits<T>(by_program<T>(oracle_, dense, number_), theirs);
  }

  const Oracle& oracle_;
  const Tensors& in_;
  const double number_;
  const at::Tensor ours_;
};

template <class T>
Verdict try_oracle(const Oracle& oracle) {
  Tensors in;
  for (size_t i = 0; i < oracle.tensors; ++i) in.push_back(trial_numbers<T>(i + 1));
  bool dense = true, others = true;
  for (size_t which = 0; which < (oracle.number ? std::size(kNumbers) : 1); ++which) {
    const Comparison<T> both(oracle, in, number_for(oracle, which));
    if (!both.agree_on_whole() || (which == 0 && !both.agrees_with_itself())) return Verdict::other;
    dense = dense && both.agree_on_dense() && (which > 0 || both.agree_on_lengths());
    others = others && dense && both.agree_on_gaps() && both.agree_on_expanded();
  }
  return others ? Verdict::same : dense ? Verdict::same_if_dense : Verdict::same_if_whole;
}

}  // namespace

bool has_oracle(Opcode opcode) {
  return std::ranges::any_of(kOracles,
                             [&](const Oracle& oracle) { return oracle.opcode == opcode; });
}

Verdict try_step(Opcode opcode, c10::ScalarType dtype) {
  Verdict found = Verdict::same;
  for (const Oracle& oracle : kOracles)
    if (oracle.opcode == opcode)
      found = std::max(
          found, dtype == c10::kFloat ? try_oracle<float>(oracle) : try_oracle<double>(oracle));
  return found;
}

}  // namespace lazyeng::fuse
