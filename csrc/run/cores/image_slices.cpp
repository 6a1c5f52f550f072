// csrc/run/cores/image_slices.cpp: some of the images for each part. (Or channels of a single
// image.)
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>

#include "csrc/run/cores/slices.h"

namespace lazyeng::run {
namespace {

class ImageSlices final : public Slices {
 public:
  ImageSlices(const OpInfo& info, const torch::jit::Stack& args, Looks looks, int count)
      : Slices(info, args, count) {
    for (const Geometry* look : looks)
      results_.push_back(
          at::empty_strided(look->sizes(), look->strides(), c10::TensorOptions(look->dtype())));
  }

  void run(int part) override {
    const int64_t images = results_[0].size(0);
    const int64_t first = images * part / count_, last = images * (part + 1) / count_;
    const auto some = [&](const at::Tensor& all) { return all.narrow(0, first, last - first); };
    torch::jit::Stack stack;
    stack.reserve(args_.size() + results_.size());
    for (size_t i = 0; i < args_.size(); ++i) {
      if (is_of_images(info_, i))
        stack.emplace_back(some(args_[i].toTensor()));
      else
        stack.push_back(args_[i]);
    }
    for (const at::Tensor& result : results_) stack.emplace_back(some(result));
    info_.out_form->callBoxed(stack);
  }

  torch::jit::Stack results() const override {
    return torch::jit::Stack(results_.begin(), results_.end());
  }

  /// (A convolution's weight and bias are the same for all.)
  static bool is_of_images(const OpInfo& info, size_t arg) {
    return info.args[arg].kind == ArgKind::tensor && (arg == 0 || info.work == Work::windows);
  }

 private:
  std::vector<at::Tensor> results_;
};

bool has_images(const at::Tensor& tensor, int64_t images) {
  return tensor.defined() && tensor.dim() > 2 && tensor.size(0) == images;
}

}  // namespace

std::unique_ptr<Slices> image_slices(const OpInfo& info, const torch::jit::Stack& args,
                                     Looks results, int threads) {
  if (!info.out_form || results.empty()) return nullptr;
  for (const Geometry* look : results)
    if (!look || !look->device().is_cpu() || !look->dense() || look->sizes().size() < 3 ||
        look->sizes()[0] != results[0]->sizes()[0])
      return nullptr;
  const int64_t images = results[0]->sizes()[0];
  if (images < threads) return nullptr;
  for (size_t i = 0; i < args.size(); ++i)
    if (ImageSlices::is_of_images(info, i) && !has_images(args[i].toTensor(), images))
      return nullptr;
  return std::make_unique<ImageSlices>(info, args, results, threads);
}

}  // namespace lazyeng::run
