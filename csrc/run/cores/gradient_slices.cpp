// csrc/run/cores/gradient_slices.cpp: a convolution's gradient for its input, and those for its
// weight and bias.
#include <ATen/core/Tensor.h>

#include <array>

#include "csrc/run/cores/slices.h"

namespace lazyeng::run {
namespace {

/// Which of the three gradients are wanted.
using Mask = std::array<bool, 3>;

Mask mask_of(const torch::jit::Stack& args) {
  const std::vector<bool> wanted = args.back().toBoolList().vec();
  return {wanted[0], wanted[1], wanted[2]};
}

class GradientSlices final : public Slices {
 public:
  GradientSlices(const OpInfo& info, const torch::jit::Stack& args)
      : Slices(info, args, /*count=*/2), wanted_(mask_of(args)) {}

  void run(int part) override {
    const Mask mask = part == 0 ? Mask{true, false, false} : Mask{false, wanted_[1], wanted_[2]};
    torch::jit::Stack stack = args_;
    stack.back() = c10::List<bool>({mask[0], mask[1], mask[2]});
    info_.handle.callBoxed(stack);
    for (size_t i = 0; i < mask.size(); ++i)
      if (mask[i]) results_[i] = stack[i].toTensor();
  }

  torch::jit::Stack results() const override {
    return torch::jit::Stack(results_.begin(), results_.end());
  }

 private:
  const Mask wanted_;
  std::array<at::Tensor, 3> results_;  // each written by one part
};

}  // namespace

std::unique_ptr<Slices> gradient_slices(const OpInfo& info, const torch::jit::Stack& args) {
  const Mask wanted = mask_of(args);
  if (!wanted[0] || (!wanted[1] && !wanted[2])) return nullptr;
  return std::make_unique<GradientSlices>(info, args);
}

}  // namespace lazyeng::run
