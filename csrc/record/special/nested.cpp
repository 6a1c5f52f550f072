// csrc/record/special/nested.cpp: rows of sizes in a backward pass, factories, reshape.
#include "csrc/record/special/nested.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_nested_tensor_from_tensor_list_native.h>
#include <ATen/ops/empty_like_native.h>
#include <torch/csrc/autograd/function.h>
#include <torch/library.h>

#include "csrc/record/call.h"
#include "csrc/record/lazy_tensor.h"
#include "csrc/record/special/factories.h"
#include "csrc/run/executor.h"
#include "csrc/run/failures/ignored_warnings.h"

namespace lazyeng::record {
namespace {

bool may_be_sizes(const at::Tensor& tensor) {
  return tensor.scalar_type() == c10::kLong && tensor.dim() == 2 && tensor.is_cpu() &&
         !lazy_impl(tensor) && recordable(tensor);
}

std::optional<c10::Device> real_device(std::optional<c10::Device> device) {
  return device && device->type() == c10::kPrivateUse1 ? backing_device() : device;
}

at::Tensor from_list(at::TensorList list, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout> layout, std::optional<at::Device> device,
                     std::optional<bool> pin_memory) {
  return at::native::_nested_tensor_from_tensor_list(list, dtype, layout, real_device(device),
                                                     pin_memory);
}

at::Tensor empty_like(const at::Tensor& self, std::optional<at::ScalarType> dtype,
                      std::optional<at::Layout> layout, std::optional<at::Device> device,
                      std::optional<bool> pin_memory, std::optional<at::MemoryFormat> format) {
  return at::native::empty_like_nested(self, dtype, layout, real_device(device), pin_memory,
                                       format);
}

/// It fills the sizes of its result through their address, also in a backward pass, where factories
/// make lazy tensors.
void reshape(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const FactoryScope plain(/*lazy=*/false);
  op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutogradNestedTensor, *stack);
}

}  // namespace

bool select_nested_sizes(const run::OpInfo& info, torch::jit::Stack& stack) {
  if (info.offset_view != run::OffsetView::select) return false;
  if (!may_be_sizes(torch::jit::peek(stack, 0, info.args.size()).toTensor())) return false;
  const auto node = torch::autograd::get_current_node();
  if (!node || node->name() != "UnbindBackwardAutogradNestedTensor0") return false;
  const run::RealDispatch below;
  info.handle.callBoxed(stack);
  return true;
}

void register_nested_kernels() {
  const auto library_for = [](c10::DispatchKey key) {
    return torch::Library(torch::Library::IMPL, "aten", std::make_optional(key), __FILE__,
                          __LINE__);
  };
  const run::IgnoredWarnings silent;  // it replaces torch's kernel
  static torch::Library dense = library_for(c10::DispatchKey::CPU);
  dense.impl("_nested_tensor_from_tensor_list", &from_list);
  static torch::Library nested = library_for(c10::DispatchKey::NestedTensorCPU);
  nested.impl("empty_like", &empty_like);
  static torch::Library autograd = library_for(c10::DispatchKey::AutogradNestedTensor);
  autograd.impl("reshape", torch::CppFunction::makeFromBoxedFunction<&reshape>());
}

}  // namespace lazyeng::record
