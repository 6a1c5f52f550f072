// csrc/fuse/bits/sum_trials.cpp: torch's sums of all elements, and the steps that stand for them.
#include <ATen/Functions.h>
#include <ATen/core/Reduction.h>

#include <algorithm>

#include "csrc/fuse/bits/exact_rows.h"
#include "csrc/fuse/bits/trial_rows.h"

namespace lazyeng::fuse {
namespace {

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
    if (!is_narrow_type<T>) return made;
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
  if constexpr (!is_narrow_type<T>)
    if (form == Form::nll_loss) return picked_losses_agree<T>();
  return std::ranges::all_of(kSums, [form](int64_t n) { return Sum<T>(form, n).agrees(); });
}

}  // namespace

bool sums_give_torchs_bits(Form form, c10::ScalarType dtype) {
  if (!has_exact_sum(form, dtype)) return true;
  switch (dtype) {
    case c10::kFloat:
      return sums_agree<float>(form);
    case c10::kDouble:
      return sums_agree<double>(form);
    case c10::kHalf:
      return sums_agree<c10::Half>(form);
    default:
      return sums_agree<c10::BFloat16>(form);
  }
}

}  // namespace lazyeng::fuse
