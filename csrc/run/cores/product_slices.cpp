// csrc/run/cores/product_slices.cpp: rows, columns or matrices of a batch, each part by the op's
// own `out=` kernel.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "csrc/run/cores/slices.h"

namespace lazyeng::run {
namespace {

/// Rows, or columns, that kernels of matrices take at a time, on any processor.
constexpr int64_t kBlock = 16;
/// Fewer of these are not worth a call of their own.
constexpr int64_t kLeastBlocks = 2;

/// `aten::mm(Tensor self, Tensor mat2)`, `aten::addmm(Tensor self, Tensor mat1, Tensor mat2, ...)`
size_t last_tensor(const OpInfo& info) {
  size_t last = 0;
  for (size_t i = 0; i < info.args.size(); ++i)
    if (info.args[i].kind == ArgKind::tensor) last = i;
  return last;
}

bool is_contiguous(const Geometry& look) {
  int64_t usual = 1;
  for (size_t d = look.sizes().size(); d-- > 0; usual *= look.sizes()[d])
    if (look.strides()[d] != usual) return false;
  return look.device().is_cpu();
}

class ProductSlices final : public Slices {
 public:
  ProductSlices(const OpInfo& info, const torch::jit::Stack& args, int count)
      : Slices(info, args, count), left_(last_tensor(info) - 1) {}

  bool choose_dim(c10::IntArrayRef sizes);
  void make_result(const Geometry& look) {
    result_ = at::empty(look.sizes(), c10::TensorOptions(look.dtype()));
  }

  void run(int part) override;
  torch::jit::Stack results() const override { return {result_}; }

 private:
  int64_t begin(int part) const;
  at::Tensor slice_of(size_t arg, int64_t first, int64_t last) const;

  at::Tensor result_;
  const size_t left_;  // the first factor among the arguments; the second comes next
  int64_t dim_ = 0;    // of the result, along which it is taken apart
  int64_t grain_ = 1;  // elements of that dim that stay together
};

bool ProductSlices::choose_dim(c10::IntArrayRef sizes) {
  const auto ndim = static_cast<int64_t>(sizes.size());
  const auto is_enough = [&] { return sizes[dim_] >= kLeastBlocks * grain_ * count_; };
  if (ndim == 3) return sizes[dim_] >= count_;
  if (ndim != 2) return false;
  grain_ = kBlock;
  dim_ = sizes[0] >= sizes[1] ? 0 : 1;
  return is_enough();
}

int64_t ProductSlices::begin(int part) const {
  const int64_t blocks = (result_.size(dim_) + grain_ - 1) / grain_;
  return std::min(blocks * part / count_ * grain_, result_.size(dim_));
}

at::Tensor ProductSlices::slice_of(size_t arg, int64_t first, int64_t last) const {
  const at::Tensor& tensor = args_[arg].toTensor();
  const int64_t dims = result_.dim();
  const bool batched = dims == 3;
  int64_t dim = dim_;
  if (arg == left_ && !batched && dim_ != 0) return tensor;
  if (arg == left_ + 1 && !batched && dim_ == 0) return tensor;
  if (arg < left_) {  // what is added may be broadcast
    dim -= dims - tensor.dim();
    if (dim < 0 || tensor.size(dim) == 1) return tensor;
  }
  return tensor.narrow(dim, first, last - first);
}

void ProductSlices::run(int part) {
  const int64_t first = begin(part), last = begin(part + 1);
  torch::jit::Stack stack;
  stack.reserve(args_.size() + 1);
  for (size_t i = 0; i < args_.size(); ++i) {
    if (args_[i].isTensor() && i <= left_ + 1)
      stack.emplace_back(slice_of(i, first, last));
    else
      stack.push_back(args_[i]);
  }
  stack.emplace_back(result_.narrow(dim_, first, last - first));
  info_.out_form->callBoxed(stack);
}

}  // namespace

std::unique_ptr<Slices> product_slices(const OpInfo& info, const torch::jit::Stack& args,
                                       Looks results, int threads) {
  if (!info.out_form || !results[0] || !is_contiguous(*results[0])) return nullptr;
  auto slices = std::make_unique<ProductSlices>(info, args, threads);
  if (!slices->choose_dim(results[0]->sizes())) return nullptr;
  slices->make_result(*results[0]);
  return slices;
}

}  // namespace lazyeng::run
