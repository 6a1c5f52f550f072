// csrc/run/slices.cpp: which part of each argument goes into which part of the result.
#include "csrc/run/slices.h"

#include <ATen/ops/empty.h>

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

}  // namespace

std::optional<Slices> Slices::of(const OpInfo& info, const torch::jit::Stack& args,
                                 const Geometry& result, int count) {
  if (!info.out_form || !is_contiguous(result)) return std::nullopt;
  Slices slices(info, args, count);
  slices.left_ = last_tensor(info) - 1;
  if (!slices.choose_dim(result.sizes())) return std::nullopt;
  slices.result_ = at::empty(result.sizes(), c10::TensorOptions(result.dtype()));
  return slices;
}

bool Slices::choose_dim(c10::IntArrayRef sizes) {
  const auto ndim = static_cast<int64_t>(sizes.size());
  const auto is_enough = [&] { return sizes[dim_] >= kLeastBlocks * grain_ * count_; };
  if (ndim == 3) return sizes[dim_] >= count_;
  if (ndim != 2) return false;
  grain_ = kBlock;
  dim_ = sizes[0] >= sizes[1] ? 0 : 1;
  return is_enough();
}

int64_t Slices::begin(int part) const {
  const int64_t blocks = (result_.size(dim_) + grain_ - 1) / grain_;
  return std::min(blocks * part / count_ * grain_, result_.size(dim_));
}

at::Tensor Slices::slice_of(size_t arg, int64_t first, int64_t last) const {
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

void Slices::run(int part) const {
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
  info_->out_form->callBoxed(stack);
}

}  // namespace lazyeng::run
