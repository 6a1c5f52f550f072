// csrc/record/special/whole_products.cpp: linear and matmul as one op each.
//
// torch writes them in terms of others: a view or two of each factor, a product, a view of that;
// two to seven calls to record. Autograd sees these, and so do modes, profilers and the tracer.
// Where none of them looks on, a small product is recorded as the program has called it, and taken
// apart by the thread that runs it. (What is worth several cores is taken apart here all the same:
// the engine shares out the products that it knows, run/cores/product_slices.cpp.)
#include "csrc/record/special/whole_products.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/library.h>

#include <thread>

#include "csrc/record/call.h"
#include "csrc/record/lazy_tensor.h"
#include "csrc/record/library.h"
#include "csrc/record/methods/direct.h"
#include "csrc/run/cores/width.h"

namespace lazyeng::record {
namespace {

/// One that takes no part in differentiation, of real numbers in the CPU's memory.
bool is_ordinary(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet special({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});
  if (!tensor.defined() || !(lazy_impl(tensor) || recordable(tensor))) return false;
  if (!tensor.is_cpu() || !c10::isFloatingType(tensor.scalar_type())) return false;
  if (tensor.numel() == 0 || tensor.key_set().has_any(special)) return false;
  if (c10::InferenceMode::is_enabled() || tensor.is_inference()) return true;
  return !(c10::GradMode::is_enabled() && tensor.requires_grad()) &&
         !tensor._fw_grad(/*level=*/0).defined();
}

bool are_alike(const at::Tensor& left, const at::Tensor& right) {
  return is_ordinary(left) && is_ordinary(right) && left.scalar_type() == right.scalar_type();
}

/// Whether the rows of all matrices are one matrix's without a copy: by strides alone, also those
/// of a single element, as torch looks at it (should_fold in ATen/native/LinearAlgebra.cpp).
bool is_one_matrix(const at::Tensor& matrices) {
  const auto sizes = matrices.sizes();
  const auto strides = matrices.strides();
  for (size_t d = 0; d + 2 < sizes.size(); ++d)
    if (strides[d] != strides[d + 1] * sizes[d + 1]) return false;
  return true;
}

/// Matrices by a matrix or a vector: torch makes one matrix of them, and not a batch, if that needs
/// no copy, or if the other factor requires grad (also where no gradient is asked for). What it is
/// given where the op runs does not require grad.
bool folds_where_it_runs(const at::Tensor& matrices, const at::Tensor& other) {
  return matrices.dim() < 3 || other.dim() > 2 || !other.requires_grad() || is_one_matrix(matrices);
}

/// Batches by batches: of a factor that requires grad and is a batch of one, torch makes a matrix.
bool are_batches_where_it_runs(const at::Tensor& left, const at::Tensor& right) {
  return left.dim() != 3 || right.dim() != 3 || left.size(0) == right.size(0) ||
         !(left.requires_grad() || right.requires_grad());
}

/// For a product of so many multiplications.
bool is_small(double products) {
  return run::microseconds_of_flops(2 * products) < run::kWorthFreeCores;
}

struct Linear {
  static bool fits(const torch::jit::Stack& stack) {
    const at::Tensor& input = torch::jit::peek(stack, 0, 3).toTensor();
    const at::Tensor& weight = torch::jit::peek(stack, 1, 3).toTensor();
    if (!are_alike(input, weight) || input.dim() == 0 || weight.dim() != 2) return false;
    if (!folds_where_it_runs(input, weight)) return false;
    if (const at::Tensor* const bias = bias_of(stack))
      if (!are_alike(input, *bias) || bias->dim() != 1) return false;
    return is_small(static_cast<double>(input.numel()) * static_cast<double>(weight.size(0)));
  }

  /// torch multiplies rows, and returns a view of what these make.
  static bool returns_view(const torch::jit::Stack& stack) {
    const at::Tensor& input = torch::jit::peek(stack, 0, 3).toTensor();
    if (!bias_of(stack) || input.dim() == 2 || !input.is_contiguous()) return false;
    static const bool returned_as_view = torch_returns_views();
    return returned_as_view;
  }

 private:
  /// torch 2.13 does; what 2.15 returns is no view. Asked in a thread of its own, which is in no
  /// mode. (Not of meta tensors: torch's meta function of addmm is Python code, which imports
  /// torch._dynamo.)
  static bool torch_returns_views() {
    bool is_view = false;
    std::thread([&] {
      const auto floats = at::TensorOptions().device(at::kCPU).dtype(at::kFloat);
      const at::Tensor rows = at::zeros({2, 3, 4}, floats), weight = at::zeros({5, 4}, floats);
      is_view = at::linear(rows, weight, at::zeros({5}, floats)).is_view();
    }).join();
    return is_view;
  }

  static const at::Tensor* bias_of(const torch::jit::Stack& stack) {
    const c10::IValue& bias = torch::jit::peek(stack, 2, 3);
    return bias.isTensor() && bias.toTensor().defined() ? &bias.toTensor() : nullptr;
  }
};

struct Matmul {
  static bool fits(const torch::jit::Stack& stack) {
    const at::Tensor& left = torch::jit::peek(stack, 0, 2).toTensor();
    const at::Tensor& right = torch::jit::peek(stack, 1, 2).toTensor();
    if (!are_alike(left, right) || left.dim() == 0 || right.dim() == 0) return false;
    // Two matrices, a matrix by a vector, and two vectors are an op already.
    if (left.dim() <= 2 && right.dim() <= 2 && !(left.dim() == 1 && right.dim() == 2)) return false;
    if (!folds_where_it_runs(left, right) || !are_batches_where_it_runs(left, right)) return false;
    if (right.dim() > 2 && left.dim() <= 2 && left.requires_grad()) return false;
    return is_small(std::max(products(left, right, 1), products(right, left, 2)));
  }

  static bool returns_view(const torch::jit::Stack&) { return false; }

 private:
  /// If the other has no dims of a batch that this one lacks.
  static double products(const at::Tensor& one, const at::Tensor& other, int64_t from_last) {
    const int64_t columns = other.dim() > 1 ? other.size(-from_last) : 1;
    return static_cast<double>(one.numel()) * static_cast<double>(columns);
  }
};

template <class Product>
bool is_whole(const torch::jit::Stack& stack) {
  return nobody_watches_calls() && !torch::jit::tracer::isTracing() && Product::fits(stack);
}

void record_below_autograd(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  record_whole(op, stack);
}

template <class Product>
void multiply(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (is_replaced(op)) return record_below_autograd(op, stack);  // torch takes it apart no more
  if (!is_whole<Product>(*stack))
    return op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, *stack);
  const bool view = Product::returns_view(*stack);
  record_below_autograd(op, stack);
  if (!view) return;
  c10::IValue& result = stack->back();
  result = result.toTensor().view(result.toTensor().sizes());
}

template <class Product>
torch::CppFunction kernel() {
  return torch::CppFunction::makeFromBoxedFunction<&multiply<Product>>();
}

}  // namespace

void register_whole_products() {
  for (const auto key : {c10::DispatchKey::AutogradPrivateUse1, c10::DispatchKey::PrivateUse1}) {
    static std::vector<torch::Library>& libraries = *new std::vector<torch::Library>;
    libraries.emplace_back(torch::Library::IMPL, "aten", std::make_optional(key), __FILE__,
                           __LINE__);
    libraries.back().impl("linear", kernel<Linear>());
    libraries.back().impl("matmul", kernel<Matmul>());
  }
}

}  // namespace lazyeng::record
