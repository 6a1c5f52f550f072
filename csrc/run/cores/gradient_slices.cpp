// csrc/run/cores/gradient_slices.cpp: a convolution's gradient for its input, and those for its
// weight and bias.
//
// The latter are sums over all images. A library that has several threads gives each a share of the
// images, or a share of the channels. In the first case one thread alone sums up in another order,
// and has other bits; but the sums of the shares, added up, have the same. The bias may be summed
// up in the one way while the weight is in the other.
#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <vector>

#include "csrc/run/cores/finding.h"
#include "csrc/run/cores/shares.h"
#include "csrc/run/cores/slices.h"

namespace lazyeng::run {
namespace {

/// Of the arguments of aten::convolution_backward.
constexpr size_t kGradOutput = 0, kInput = 1, kWeight = 2;
constexpr size_t kGroupsFromEnd = 2, kTransposedFromEnd = 4;

/// Which of the three gradients are wanted.
using Mask = std::array<bool, 3>;

Mask mask_of(const torch::jit::Stack& args) {
  const std::vector<bool> wanted = args.back().toBoolList().vec();
  return {wanted[0], wanted[1], wanted[2]};
}

struct Way {
  int shares;       ///< of the images, for the gradients for weight and bias
  bool bias_apart;  ///< that for the bias is of all images
};

/// All at once, then in shares: as many as there are threads, a half of that, a third, ...
std::vector<Way> ways_for(int threads) {
  std::vector<Way> ways{{1, false}};
  for (int shares = threads; shares > 1; --shares) {
    if (threads % shares != 0) continue;
    ways.push_back({shares, false});
    ways.push_back({shares, true});
  }
  if (ways.size() > Finding::kMostWays) ways.resize(Finding::kMostWays);
  return ways;
}

class GradientSlices final : public Slices {
 public:
  /// Of which gradients and images a part is.
  struct Part {
    Mask mask;
    int share = 0, shares = 1;
    bool of_one_channel = false;
  };

  GradientSlices(const OpInfo& info, const torch::jit::Stack& args, std::vector<Part> parts)
      : Slices(info, args, static_cast<int>(parts.size())),
        parts_(std::move(parts)),
        made_(parts_.size()) {}

  void run(int number) override;
  torch::jit::Stack results() const override;

 private:
  torch::jit::Stack arguments_of(const Part& part) const;

  const std::vector<Part> parts_;
  std::vector<std::array<at::Tensor, 3>> made_;  // each written by one part
};

torch::jit::Stack GradientSlices::arguments_of(const Part& part) const {
  torch::jit::Stack stack = args_;
  stack.back() = c10::List<bool>({part.mask[0], part.mask[1], part.mask[2]});
  if (part.shares > 1)
    for (const size_t of_images : {kGradOutput, kInput})
      stack[of_images] = share_of(args_[of_images].toTensor(), 0, part.share, part.shares);
  if (part.of_one_channel) {
    const bool transposed = args_[args_.size() - kTransposedFromEnd].toBool();
    stack[kInput] = args_[kInput].toTensor().narrow(1, 0, 1);
    stack[kWeight] = args_[kWeight].toTensor().narrow(transposed ? 0 : 1, 0, 1);
  }
  return stack;
}

void GradientSlices::run(int number) {
  const Part& part = parts_[static_cast<size_t>(number)];
  torch::jit::Stack stack = arguments_of(part);
  info_.handle.callBoxed(stack);
  for (size_t i = 0; i < part.mask.size(); ++i)
    if (part.mask[i]) made_[static_cast<size_t>(number)][i] = stack[i].toTensor();
}

torch::jit::Stack GradientSlices::results() const {
  std::array<at::Tensor, 3> sums;
  for (size_t i = 0; i < sums.size(); ++i) {
    std::vector<at::Tensor> shares;
    for (const std::array<at::Tensor, 3>& made : made_)
      if (made[i].defined()) shares.push_back(made[i]);
    if (!shares.empty()) sums[i] = sum_of_shares(shares);
  }
  return torch::jit::Stack(sums.begin(), sums.end());
}

/// The bias's gradient is the sum of `grad_output`: one channel of input and weight will do.
/// (Groups want one of each.)
bool one_channel_will_do(const torch::jit::Stack& args) {
  return args[args.size() - kGroupsFromEnd].toInt() == 1;
}

/// Nothing if this way does not suit the call.
std::optional<std::vector<GradientSlices::Part>> parts_of(const torch::jit::Stack& args, Way way) {
  const Mask wanted = mask_of(args);
  const bool sums_wanted = wanted[1] || wanted[2];
  if (way.shares == 1 && (!wanted[0] || !sums_wanted)) return std::nullopt;
  if (!sums_wanted || args[kInput].toTensor().size(0) < way.shares) return std::nullopt;
  if (way.bias_apart && (!wanted[1] || !wanted[2] || !one_channel_will_do(args)))
    return std::nullopt;
  std::vector<GradientSlices::Part> parts;
  if (wanted[0]) parts.push_back({.mask = {true, false, false}});
  for (int share = 0; share < way.shares; ++share)
    parts.push_back({.mask = {false, wanted[1], wanted[2] && !way.bias_apart},
                     .share = share,
                     .shares = way.shares});
  if (way.bias_apart) parts.push_back({.mask = {false, false, true}, .of_one_channel = true});
  return parts;
}

}  // namespace

int ways_to_slice_gradient(int threads) { return static_cast<int>(ways_for(threads).size()); }

std::unique_ptr<Slices> gradient_slices(const OpInfo& info, const torch::jit::Stack& args,
                                        int threads, int way) {
  auto parts = parts_of(args, ways_for(threads)[static_cast<size_t>(way)]);
  if (!parts) return nullptr;
  return std::make_unique<GradientSlices>(info, args, std::move(*parts));
}

}  // namespace lazyeng::run
