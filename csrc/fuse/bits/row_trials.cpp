// csrc/fuse/bits/row_trials.cpp: torch's kernels of rows, and the steps that stand for them.
#include <ATen/Functions.h>

#include <algorithm>

#include "csrc/fuse/bits/exact_rows.h"
#include "csrc/fuse/bits/trial_rows.h"
#include "csrc/fuse/extent.h"

namespace lazyeng::fuse {
namespace {

/// More than are folded side by side, and not a multiple of these.
constexpr int64_t kRows = 17;
/// Of each kind: some vectors and no more, with something left over, of each depth of sums. (Of
/// rows that are shorter than a vector torch's kernels go element by element.)
constexpr int64_t kRowLengths[] = {1,   2,   3,   5,   7,   8,    9,    13,   16,  17,  19,
                                   31,  32,  33,  41,  63,  64,   71,   96,   127, 128, 129,
                                   200, 257, 300, 511, 768, 1000, 1024, 1039, 2300};
constexpr int64_t kLongRows[] = {4096, 16389, 50257};
constexpr double kEps = 1e-5;

/// Of the elements of each row.
constexpr bool takes_two(Form form) {
  return form == Form::softmax_backward || form == Form::log_softmax_backward;
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
    const at::Tensor &x = in_.front(), &y = in_.back();
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
    if (takes_two(form_)) load(in_[1], Rate::element);
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

/// Along a dim that is not the last one. (Trials run on one thread, which has whole vectors only.)
template <class T>
class Slabs {
 public:
  Slabs(Form form, int64_t folded, int64_t inner)
      : form_(form), inner_(inner), x_(like_numbers<T>(kSlabs, folded * inner, 1)) {}

  bool agree() const {
    const at::Tensor x = x_.view({kSlabs, -1, inner_});
    const at::Tensor theirs =
        form_ == Form::softmax ? at::_softmax(x, 1, false) : at::_log_softmax(x, 1, false);
    return same_bits<T>(by_program(), theirs.view({kSlabs, -1}));
  }

 private:
  at::Tensor by_program() const {
    ProgramBuilder builder(best_kernels(), x_.numel(), x_.size(1), {});
    RowArguments args;
    args.tensors.push_back(load_wide(builder, x_.scalar_type()));
    args.row = x_.size(1);
    args.inner = inner_;
    builder.store(exact_rows(builder, {form_, Opcode::copy}, args)[0],
                  {.type = kMemory<T>, .strides = {}});
    at::Tensor made = at::empty_like(x_);
    Bindings bindings;
    for (const at::Tensor& tensor : {x_, made})
      bindings.tensors.push_back(static_cast<char*>(tensor.mutable_data_ptr()));
    TORCH_CHECK(builder.ok(), "no kernel");
    run_program(std::move(builder).finish(), bindings, Cores::one);
    return made;
  }

  static constexpr int64_t kSlabs = 3;
  const Form form_;
  const int64_t inner_;
  const at::Tensor x_;
};

template <class T>
bool slabs_agree(Form form) {
  if (form != Form::softmax && form != Form::log_softmax) return true;
  for (const int64_t folded : {2, 3, 5, 8, 21, 100})
    for (const int64_t inner : {16, 48, 64, 80})
      if (!Slabs<T>(form, folded, inner).agree()) return false;
  return true;
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
  if (!sums_give_torchs_bits(form, dtype)) return false;
  if (!has_exact_rows(form, dtype)) return true;
  const auto agree_on = [form](int64_t rows, int64_t row) {
    const int64_t more = form == Form::layer_norm ? 2 : takes_two(form) ? rows : 0;
    return agree<T>(form, rows, row,
                    {like_numbers<T>(rows, row, 1), like_numbers<T>(more, row, 2)});
  };
  const auto is_asked_for = [form](int64_t row) {
    return row >= kShortestExactRow && (form != Form::softmax_backward || is_whole(row));
  };
  for (const int64_t row : kRowLengths)
    if (is_asked_for(row) && !agree_on(row < 300 ? kRows : 5, row)) return false;
  for (const int64_t row : kLongRows)
    if (is_asked_for(row) && !agree_on(2, row)) return false;
  if constexpr (is_narrow_type<T>) {
    if (!narrow::agree<T>(form)) return false;
  } else if (!slabs_agree<T>(form)) {
    return false;
  }
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
