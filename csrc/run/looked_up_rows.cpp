// csrc/run/looked_up_rows.cpp: embedding_dense_backward(grad, indices, number of rows, ...).
#include "csrc/run/looked_up_rows.h"

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace lazyeng::run {
namespace {

template <class T>
bool are_rows(const at::Tensor& indices, int64_t rows) {
  const T* const begin = indices.const_data_ptr<T>();
  return std::all_of(begin, begin + indices.numel(),
                     [rows](T index) { return index >= 0 && index < rows; });
}

}  // namespace

void check_rows(const OpInfo& info, const torch::jit::Stack& stack) {
  if (!info.trusts_rows) [[likely]]
    return;
  const at::Tensor& given = torch::jit::peek(stack, 1, info.args.size()).toTensor();
  if (!given.device().is_cpu()) return;  // (kernels on devices have assertions)
  const int64_t rows = torch::jit::peek(stack, 2, info.args.size()).toInt();
  const at::Tensor indices = given.contiguous();
  const bool fine = indices.scalar_type() == c10::kInt    ? are_rows<int>(indices, rows)
                    : indices.scalar_type() == c10::kLong ? are_rows<int64_t>(indices, rows)
                                                          : true;  // the kernel refuses them
  TORCH_CHECK_INDEX(fine, "index out of range in self");
}

}  // namespace lazyeng::run
