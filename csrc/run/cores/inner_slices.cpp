// csrc/run/cores/inner_slices.cpp: a product as the sum of products over shares of its inner dim.
//
// A row times a matrix is summed up so by a library that has several threads: one thread alone sums
// up in another order, and has other bits. Few rows of the result leave it no other way to share.
#include <ATen/core/Tensor.h>

#include <vector>

#include "csrc/run/cores/shares.h"
#include "csrc/run/cores/slices.h"

namespace lazyeng::run {
namespace {

/// `aten::mm(Tensor self, Tensor mat2)`, `aten::bmm` likewise.
constexpr size_t kLeft = 0, kRight = 1, kFactors = 2;

class InnerSlices final : public Slices {
 public:
  InnerSlices(const OpInfo& info, const torch::jit::Stack& args, int count)
      : Slices(info, args, count), made_(static_cast<size_t>(count)) {}

  void run(int part) override {
    const auto of = [&](size_t factor, int64_t dim) {
      return share_of(args_[factor].toTensor(), dim, part, count_);
    };
    torch::jit::Stack stack{of(kLeft, -1), of(kRight, -2)};
    info_.handle.callBoxed(stack);
    made_[static_cast<size_t>(part)] = stack[0].toTensor();
  }

  torch::jit::Stack results() const override { return {sum_of_shares(made_)}; }

 private:
  std::vector<at::Tensor> made_;  // each written by one part
};

}  // namespace

bool has_inner_slices(const OpInfo& info) {
  return info.work == Work::product && info.out_form && info.args.size() == kFactors;
}

std::unique_ptr<Slices> inner_slices(const OpInfo& info, const torch::jit::Stack& args,
                                     int threads) {
  if (args[kLeft].toTensor().size(-1) < threads) return nullptr;
  return std::make_unique<InnerSlices>(info, args, threads);
}

}  // namespace lazyeng::run
