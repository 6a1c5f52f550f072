// csrc/fuse/row_trials.cpp: torch's kernels of rows, and the steps that stand for them.
#include <ATen/Functions.h>
#include <ATen/core/Reduction.h>

#include <algorithm>

#include "csrc/fuse/exact_rows.h"
#include "csrc/fuse/extent.h"
#include "csrc/fuse/registers.h"
#include "csrc/fuse/trial_numbers.h"

namespace lazyeng::fuse {
namespace {

using Tensors = std::vector<at::Tensor>;

/// More than are folded side by side, and not a multiple of these.
constexpr int64_t kRows = 17;
/// Of each kind: some vectors and no more, with something left over, of each depth of sums. (Of
/// rows that are shorter than a vector torch's kernels go element by element.)
constexpr int64_t kRowLengths[] = {1,   2,   3,   5,   7,   8,    9,    13,   16,  17,  19,
                                   31,  32,  33,  41,  63,  64,   71,   96,   127, 128, 129,
                                   200, 257, 300, 511, 768, 1000, 1024, 1039, 2300};
constexpr int64_t kLongRows[] = {4096, 16389};
constexpr double kEps = 1e-5;

template <class T>
inline constexpr bool is_narrow = std::is_same_v<T, c10::Half> || std::is_same_v<T, c10::BFloat16>;
/// What registers hold of it.
template <class T>
using Wide = std::conditional_t<is_narrow<T>, float, T>;

template <class T>
inline const Type kMemory = memory_type(c10::CppTypeToScalarType<T>::value);
template <class T>
inline const Type kRegister = register_type(c10::CppTypeToScalarType<T>::value);

/// Of a narrow dtype a sum of such numbers is rounded to the same, whatever the order. So half of
/// these are large and cancel out: what is left of a row is as large as its errors.
template <class T>
void let_cancel(T* row, int64_t n, uint64_t& state) {
  constexpr double kSmall = 0x1p-8, kLarge = 0x1p12;
  for (int64_t i = 0; i < n; ++i) row[i] = static_cast<T>(static_cast<float>(row[i]) * kSmall);
  for (int64_t i = 0; i < n / 2; ++i) {
    const uint64_t choice = next_random(state);
    if (choice % 2) continue;
    const auto large = static_cast<T>(static_cast<double>(choice >> 3) * 0x1p-61 * kLarge);
    row[i] = large;
    row[n - 1 - i] = -large;
  }
}

/// Numbers of -4 to 4, about some other.
template <class T>
at::Tensor numbers_about(double middle, int64_t rows, int64_t row, uint64_t& state) {
  at::Tensor made = at::empty({rows, row}, at::CppTypeToScalarType<T>::value);
  T* const data = made.mutable_data_ptr<T>();
  for (int64_t i = 0; i < rows * row; ++i) {
    const auto bits = static_cast<int64_t>(next_random(state));
    data[i] = static_cast<T>(middle + static_cast<double>(bits) * 0x1p-61);
  }
  return made;
}

/// Numbers of about one size, whose sums round: of others only the largest would be seen.
template <class T>
at::Tensor like_numbers(int64_t rows, int64_t row, uint64_t seed) {
  uint64_t state = seed;
  at::Tensor made = numbers_about<T>(0, rows, row, state);
  if constexpr (is_narrow<T>)
    for (int64_t r = 0; r < rows; ++r) let_cancel(made.mutable_data_ptr<T>() + r * row, row, state);
  return made;
}

/// What a program loads of a tensor.
RegisterId load_wide(ProgramBuilder& builder, c10::ScalarType dtype, Rate rate = Rate::element) {
  const Type memory = memory_type(dtype), type = register_type(dtype);
  const RegisterId loaded = builder.load({.type = memory, .strides = {}, .rate = rate});
  return memory == type ? loaded : builder.cast(loaded, type);
}

template <class T>
class Rows {
 public:
  Rows(Form form, int64_t rows, int64_t row, Tensors in)
      : form_(form), rows_(rows), row_(row), in_(std::move(in)) {}

  bool agree(Opcode opcode, bool weight = false, bool bias = false) const {
    const Tensors theirs = by_torch(opcode, weight, bias), ours = by_program(opcode, weight, bias);
    for (size_t i = 0; i < ours.size(); ++i) {
      const at::Tensor a = ours[i].view({rows_, -1}), b = theirs[i].view({rows_, -1});
      if (b.scalar_type() == c10::kFloat ? !same_bits<float>(a, b) : !same_bits<T>(a, b))
        return false;
    }
    return true;
  }

 private:
  Tensors by_torch(Opcode opcode, bool weight, bool bias) const {
    const at::Tensor &x = in_[0], &y = in_[1];
    const c10::ScalarType dtype = x.scalar_type();
    const bool root = opcode == Opcode::sqrt;
    switch (form_) {
      case Form::sum:
        return {at::sum(x, -1)};
      case Form::mean:
        return {at::mean(x, -1)};
      case Form::variance:
        return {root ? at::std(x, {-1}, at::Scalar(kCorrection))
                     : at::var(x, {-1}, at::Scalar(kCorrection))};
      case Form::variance_and_mean: {
        const auto [first, second] = root ? at::std_mean(x, {-1}, at::Scalar(kCorrection))
                                          : at::var_mean(x, {-1}, at::Scalar(kCorrection));
        return {first, second};
      }
      case Form::logsumexp:
        return {at::logsumexp(x, {-1})};
      case Form::softmax:
        return {at::_softmax(x, -1, false)};
      case Form::log_softmax:
        return {at::_log_softmax(x, -1, false)};
      case Form::softmax_backward:
        return {at::_softmax_backward_data(x, y, -1, dtype)};
      case Form::log_softmax_backward:
        return {at::_log_softmax_backward_data(x, y, -1, dtype)};
      default: {
        const auto given = [&](bool is, int64_t row) {
          return is ? std::optional<at::Tensor>(y[row]) : std::nullopt;
        };
        const auto [made, mean, rstd] =
            at::native_layer_norm(x, {row_}, given(weight, 0), given(bias, 1), kEps);
        return {made, mean, rstd};
      }
    }
  }

  Tensors by_program(Opcode opcode, bool weight, bool bias) const {
    ProgramBuilder builder(best_kernels(), rows_ * row_, row_, {});
    Bindings bindings;
    alignas(64) Wide<T> splats[4][kSplatBytes / sizeof(Wide<T>)];
    bindings.splats = reinterpret_cast<char*>(splats);
    size_t parameters = 0;
    RowArguments args;
    args.row = row_;
    args.order_of = kMemory<T>;
    args.divisor = variance_divisor(row_, kCorrection);
    args.number = [&](double value) {
      std::ranges::fill(splats[parameters++], static_cast<Wide<T>>(value));
      return builder.parameter(kRegister<T>);
    };
    const auto load = [&](const at::Tensor& tensor, Rate rate) {
      bindings.tensors.push_back(static_cast<char*>(tensor.mutable_data_ptr()));
      args.tensors.push_back(load_wide(builder, tensor.scalar_type(), rate));
    };
    load(in_[0], Rate::element);
    if (form_ == Form::softmax_backward || form_ == Form::log_softmax_backward)
      load(in_[1], Rate::element);
    if (form_ == Form::layer_norm) {
      const auto load_if = [&](bool is, int64_t row) {
        if (is)
          load(in_[1][row], Rate::column);
        else
          args.tensors.push_back(RowArguments::kNone);
      };
      load_if(weight, 0);
      load_if(bias, 1);
      args.eps = args.number(kEps);
    }
    const std::vector<RegisterId> made = exact_rows(builder, {form_, opcode}, args);
    Tensors results;
    for (size_t i = 0; i < made.size(); ++i) {
      const bool of_row = is_row_result(form_, i);
      // (Beside a weight or a bias, moments have the dtype of these.)
      const at::Tensor& like = in_[of_row && (weight || bias) ? 1 : 0];
      results.push_back(of_row ? at::empty({rows_}, like.options()) : at::empty_like(in_[0]));
      builder.store(made[i], {.type = memory_type(like.scalar_type()),
                              .strides = {},
                              .rate = of_row ? Rate::row : Rate::element});
      bindings.tensors.push_back(static_cast<char*>(results.back().mutable_data_ptr()));
    }
    TORCH_CHECK(builder.ok(), "no kernel");
    run_program(std::move(builder).finish(), bindings, Cores::one);
    return results;
  }

  static constexpr double kCorrection = 1;

  const Form form_;
  const int64_t rows_, row_;
  const Tensors in_;
};

template <class T>
bool agree(Form form, int64_t rows, int64_t row, Tensors in) {
  const Rows<T> both(form, rows, row, std::move(in));
  if (form == Form::layer_norm) {
    // (Each combination with some lengths.)
    const bool weight = row & 1, bias = row & 2;
    return both.agree(Opcode::copy, weight, bias) && both.agree(Opcode::copy, !weight, !bias);
  }
  return both.agree(Opcode::copy) && (!is_variance(form) || both.agree(Opcode::sqrt));
}

/// A sum of all elements, some of them more than the levels of torch's sum, on one thread.
template <class T>
class Sum {
 public:
  Sum(Form form, int64_t n)
      : form_(form), x_(like_numbers<T>(1, n, 1)), y_(like_numbers<T>(1, n, 2)) {}

  bool agrees() const {
    const at::Tensor theirs = form_ == Form::sum    ? at::sum(x_)
                              : form_ == Form::mean ? at::mean(x_)
                                                    : at::mse_loss(x_, y_);
    return same_bits<T>(by_program().view({1, 1}), theirs.view({1, 1}));
  }

 private:
  at::Tensor by_program() const {
    ProgramBuilder builder(best_kernels(), x_.numel(), 0, {});
    Bindings bindings;
    const auto load = [&](const at::Tensor& tensor) {
      bindings.tensors.push_back(static_cast<char*>(tensor.mutable_data_ptr()));
      return load_wide(builder, tensor.scalar_type());
    };
    RegisterId elements = load(x_);
    if (form_ == Form::mse_loss) {
      elements = rounded(builder, Opcode::sub, {elements, load(y_)});
      elements = rounded(builder, Opcode::square, {elements});
    }
    const double divisor = form_ == Form::sum ? 1 : static_cast<double>(x_.numel());
    const Type sum_of = form_ == Form::sum ? kMemory<T> : kRegister<T>;
    builder.reduce(elements, Fold::sum, divisor, kMemory<T>, {}, sum_of);
    at::Tensor result = at::empty({1}, x_.options());
    bindings.tensors.push_back(static_cast<char*>(result.mutable_data_ptr()));
    TORCH_CHECK(builder.ok(), "no kernel");
    run_program(std::move(builder).finish(), bindings, Cores::one);
    return result;
  }

  static RegisterId rounded(ProgramBuilder& builder, Opcode opcode,
                            std::initializer_list<RegisterId> in) {
    const Type type = kRegister<T>;
    const RegisterId made = builder.step(opcode, type, type, in);
    if (!is_narrow<T>) return made;
    const bool half = std::is_same_v<T, c10::Half>;
    return builder.step(half ? Opcode::round_f16 : Opcode::round_bf16, type, type, {made});
  }

  const Form form_;
  const at::Tensor x_, y_;
};

/// The same of the element that each row's target names.
template <class T>
class PickedLoss {
 public:
  PickedLoss(int64_t rows, bool weighted, at::Reduction::Reduction reduction)
      : weighted_(weighted),
        reduction_(reduction),
        x_(like_numbers<T>(rows, kClasses, 1)),
        weights_(like_numbers<T>(1, kClasses, 2).view({kClasses})),
        targets_(at::empty({rows}, c10::kLong)) {
    uint64_t state = 3;
    for (int64_t i = 0; i < rows; ++i)
      targets_.mutable_data_ptr<int64_t>()[i] = static_cast<int64_t>(next_random(state) % kClasses);
  }

  bool agrees() const {
    const auto [loss, weight] = at::nll_loss_forward(
        x_, targets_, weighted_ ? std::optional(weights_) : std::nullopt, reduction_, kIgnored);
    const Tensors ours = by_program();
    return same_bits<T>(ours[0], loss.view({1, 1})) && same_bits<T>(ours[1], weight.view({1, 1}));
  }

 private:
  Tensors by_program() const {
    ProgramBuilder builder(best_kernels(), x_.numel(), kClasses, {});
    Bindings bindings;
    const auto load = [&](const at::Tensor& tensor, Rate rate) {
      bindings.tensors.push_back(static_cast<char*>(tensor.mutable_data_ptr()));
      return builder.load({.type = memory_type(tensor.scalar_type()), .strides = {}, .rate = rate});
    };
    PickedSum sum;
    sum.ignored = kIgnored;
    sum.mean = reduction_ == at::Reduction::Mean;
    sum.rows = load(x_, Rate::element);
    const RegisterId targets = load(targets_, Rate::row);
    if (weighted_) sum.weights = load(weights_, Rate::column);
    Tensors results;
    for (const bool total_weight : {false, true}) {
      builder.sum_picked(sum, targets, total_weight);
      results.push_back(at::empty({1, 1}, x_.options()));
      bindings.tensors.push_back(static_cast<char*>(results.back().mutable_data_ptr()));
    }
    TORCH_CHECK(builder.ok(), "no kernel");
    run_program(std::move(builder).finish(), bindings, Cores::one);
    return results;
  }

  static constexpr int64_t kClasses = 5, kIgnored = 3;
  const bool weighted_;
  const at::Reduction::Reduction reduction_;
  const at::Tensor x_, weights_, targets_;
};

/// Some of them more than the levels of torch's sum.
template <class T>
bool picked_losses_agree() {
  for (const int64_t rows : {2, 15, 16, 17, 33, 100, 257, 300, 5000})
    for (const bool weighted : {false, true})
      for (const auto reduction : {at::Reduction::Mean, at::Reduction::Sum})
        if (!PickedLoss<T>(rows, weighted, reduction).agrees()) return false;
  return true;
}

constexpr int64_t kSums[] = {2, 7, 8, 9, 31, 32, 33, 65, 100, 515, 4099, 32767, 100003};

template <class T>
bool sums_agree(Form form) {
  if constexpr (!is_narrow<T>)
    if (form == Form::nll_loss) return picked_losses_agree<T>();
  return std::ranges::all_of(kSums, [form](int64_t n) { return Sum<T>(form, n).agrees(); });
}

/// Of narrow dtypes sums show in few of the results, as these are rounded: more numbers, and such
/// as show more.
namespace narrow {

constexpr int64_t kMoreRows = 65;

int64_t rows_of(int64_t row) { return row < 300 ? kMoreRows : 5; }

/// Far from 0 the elements that are left of a row without its mean are as large as what rounding
/// takes from the mean and the deviation. Weights are of the dtype, or of float32.
template <class T>
bool norms_agree(int64_t row) {
  constexpr double kFar = 256;
  if (row < kShortestExactRow) return true;
  uint64_t state = static_cast<uint64_t>(row);
  const at::Tensor x = numbers_about<T>(kFar, rows_of(row), row, state);
  const at::Tensor weights = numbers_about<T>(0, 2, row, state);
  return agree<T>(Form::layer_norm, x.size(0), row, {x, weights}) &&
         agree<T>(Form::layer_norm, x.size(0), row, {x, weights.to(c10::kFloat)});
}

template <class T>
bool softmaxes_agree(Form form, int64_t row) {
  if (row < kShortestExactRow) return true;
  uint64_t state = static_cast<uint64_t>(row);
  const int64_t rows = rows_of(row);
  return agree<T>(form, rows, row, {numbers_about<T>(0, rows, row, state)});
}

/// Rows whose exponentials are 1 or very small. The former add up to a number between two of
/// bfloat16; the order says how many of the latter are lost beside them, and so which of the two it
/// is.
bool undecided_sums_agree() {
  constexpr int64_t kRow = 300, kOnes = 257;
  constexpr float kSmall = -14;
  const at::Tensor x = at::zeros({kMoreRows, kRow}, c10::kBFloat16);
  uint64_t state = 1;
  for (int64_t r = 0; r < kMoreRows; ++r)
    for (int64_t made = 0; made < kRow - kOnes;) {
      auto& element = x.mutable_data_ptr<c10::BFloat16>()[r * kRow + next_random(state) % kRow];
      made += element == 0;
      element = kSmall;
    }
  return agree<c10::BFloat16>(Form::log_softmax, kMoreRows, kRow, {x});
}

/// (torch has one template for both dtypes. Of float16 more is seen.)
bool softmaxes_agree(Form form) {
  return std::ranges::all_of(kRowLengths,
                             [form](int64_t row) {
                               return softmaxes_agree<c10::Half>(form, row) &&
                                      softmaxes_agree<c10::BFloat16>(form, row);
                             }) &&
         (form != Form::log_softmax || undecided_sums_agree());
}

template <class T>
bool agree(Form form) {
  if (form == Form::softmax || form == Form::log_softmax) return softmaxes_agree(form);
  return form != Form::layer_norm || std::ranges::all_of(kRowLengths, norms_agree<T>);
}

}  // namespace narrow

template <class T>
bool agree(Form form) {
  constexpr c10::ScalarType dtype = c10::CppTypeToScalarType<T>::value;
  if (has_exact_sum(form, dtype) && !sums_agree<T>(form)) return false;
  if (!has_exact_rows(form, dtype)) return true;
  const auto agree_on = [form](int64_t rows, int64_t row) {
    return agree<T>(
        form, rows, row,
        {like_numbers<T>(rows, row, 1), like_numbers<T>(std::max<int64_t>(rows, 2), row, 2)});
  };
  const auto is_asked_for = [form](int64_t row) {
    return row >= kShortestExactRow && (form != Form::softmax_backward || is_whole(row));
  };
  for (const int64_t row : kRowLengths)
    if (is_asked_for(row) && !agree_on(row < 300 ? kRows : 5, row)) return false;
  for (const int64_t row : kLongRows)
    if (is_asked_for(row) && !agree_on(2, row)) return false;
  if (is_narrow<T> && !narrow::agree<T>(form)) return false;
  // Of any size, some with a meaning of their own.
  for (const int64_t row : {int64_t{39}, int64_t{64}}) {
    if (!is_asked_for(row)) continue;
    const int64_t rows = kTrialNumbers / row;
    const auto cut = [&](uint64_t seed) {
      return trial_numbers<Wide<T>>(seed).narrow(0, 0, rows * row).view({rows, row}).to(dtype);
    };
    if (!agree<T>(form, rows, row, {cut(1), cut(2)})) return false;
  }
  return true;
}

}  // namespace

bool rows_give_torchs_bits(Form form, c10::ScalarType dtype) {
  switch (dtype) {
    case c10::kFloat:
      return agree<float>(form);
    case c10::kDouble:
      return agree<double>(form);
    case c10::kHalf:
      return agree<c10::Half>(form);
    default:
      return agree<c10::BFloat16>(form);
  }
}

}  // namespace lazyeng::fuse
