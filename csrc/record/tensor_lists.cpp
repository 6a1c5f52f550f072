// csrc/record/tensor_lists.cpp: ops over lists of tensors (_foreach_add_, ...), recorded tensor by
// tensor.
//
// torch's kernel for the CPU is a loop that calls the op of one tensor for each of the list.
// Recorded whole it would wait for all of its tensors and join no group; as its parts, the step of
// an optimizer over many parameters is recorded by a few calls from Python and runs as groups. On
// other devices such an op is one kernel, and a chain of them one launch (fuse/chosen/lists.py): it
// is recorded whole.
#include "csrc/record/tensor_lists.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>

#include "csrc/record/gate.h"
#include "csrc/record/lazy_tensor.h"
#include "csrc/record/library.h"
#include "csrc/record/recorder.h"

namespace lazyeng::record {
namespace {

bool is_on_cpu(const at::Tensor& tensor) {
  const LazyImpl* const lazy = lazy_impl(tensor);
  return (lazy ? lazy->value()->geometry().device() : tensor.device()).is_cpu();
}

bool is_on_cpu(const c10::IValue& argument) {
  if (argument.isTensor()) return is_on_cpu(argument.toTensor());
  if (!argument.isTensorList()) return true;
  const c10::ArrayRef<c10::IValue> list = argument.toListRef();
  return std::all_of(list.begin(), list.end(),
                     [](const c10::IValue& element) { return is_on_cpu(element.toTensor()); });
}

void record_each(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto first = stack->end() - static_cast<ptrdiff_t>(op.schema().arguments().size());
  const Gate::Inside inside;
  if (std::all_of(first, stack->end(), [](const c10::IValue& arg) { return is_on_cpu(arg); }))
    op.callBoxedForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd, *stack);
  else
    current_recorder()->record(info_of(op), stack);
}

/// The loop reads numbers from the memory of such an argument (_foreach_addcdiv_.Tensor).
bool is_tensor_of_numbers(const c10::Argument& argument) {
  return argument.name() == "scalars" && argument.type()->kind() == c10::TypeKind::TensorType;
}

}  // namespace

std::optional<torch::CppFunction> tensor_list_kernel(const c10::OperatorHandle& op) {
  constexpr c10::DispatchKey kLoop = c10::DispatchKey::CompositeExplicitAutograd;
  const c10::FunctionSchema& schema = op.schema();
  const auto unfit = [](const c10::Argument& argument) {
    return argument.is_out() || is_tensor_of_numbers(argument);
  };
  if (schema.name().rfind("aten::_foreach_", 0) != 0 || !op.hasKernelForDispatchKey(kLoop) ||
      op.hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
      std::any_of(schema.arguments().begin(), schema.arguments().end(), unfit))
    return std::nullopt;
  return torch::CppFunction::makeFromBoxedFunction<&record_each>();
}

}  // namespace lazyeng::record
