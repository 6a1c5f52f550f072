// csrc/record/collectives.cpp: torch.distributed's operations on lazy tensors.
//
// Functional collectives that make new tensors are recorded as any op; the run includes the wait
// for the backend (csrc/run/collective.h), and one var that all of them write keeps them in program
// order, which has to be the same in all processes.
//
// The others: a backend (gloo, NCCL) reads and writes memory on threads of its own until the caller
// waits for the Work that it is given, and the schemas do not say what is written. So they are
// called once everything recorded is complete, with tensors over the real memory. From then on the
// rules are eager's: nobody touches that memory before the Work ends.
#include "csrc/record/collectives.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <unordered_map>

#include "csrc/record/lazy_tensor.h"
#include "csrc/record/library.h"
#include "csrc/record/recorder.h"
#include "csrc/run/collective.h"
#include "csrc/run/executor.h"
#include "csrc/run/ignored_warnings.h"

namespace lazyeng::record {
namespace {

/// What each tensor is given in place of the lazy one, and back.
class RealArguments {
 public:
  explicit RealArguments(const torch::jit::Stack& arguments) {
    for (const c10::IValue& argument : arguments)
      stack_.push_back(mapped(argument, [this](const at::Tensor& t) { return real(t); }));
  }

  torch::jit::Stack& stack() { return stack_; }

  /// The same tensors come back as went in.
  c10::IValue lazy_again(const c10::IValue& result) const {
    return mapped(result, [this](const at::Tensor& tensor) {
      const auto found = lazy_.find(tensor.unsafeGetTensorImpl());
      return found == lazy_.end() ? tensor : found->second;
    });
  }

 private:
  at::Tensor real(const at::Tensor& tensor) {
    const LazyImpl* const lazy = lazy_impl(tensor);
    if (!lazy) return tensor;
    current_recorder()->wait_and_check(*lazy->value());
    at::Tensor plain = lazy->value()->plain();
    lazy_.emplace(plain.unsafeGetTensorImpl(), tensor);
    return plain;
  }

  /// `function` of each tensor, also in lists and in lists of lists.
  template <class Function>
  static c10::IValue mapped(const c10::IValue& value, const Function& function) {
    if (value.isTensor()) return function(value.toTensor());
    if (!value.isList()) return value;
    const c10::List<c10::IValue> list = value.toList();
    c10::impl::GenericList result(list.elementType());
    for (const c10::IValue& item : list.vec()) result.push_back(mapped(item, function));
    return result;
  }

  torch::jit::Stack stack_;
  std::unordered_map<c10::TensorImpl*, at::Tensor> lazy_;
};

bool is_of(const c10::OperatorName& name, std::string_view name_space) {
  return name.name.rfind(name_space, 0) == 0;
}

void call_collective(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t count = op.schema().arguments().size();
  // Reads that are pending look at what the backend may write, so the last write is not enough.
  current_recorder()->wait_for_all();
  RealArguments arguments(torch::jit::pop(*stack, count));
  {
    const run::RealDispatch below;
    op.callBoxed(&arguments.stack());
    // `all_reduce_` and its like: wait_tensor of a lazy tensor does nothing.
    if (info_of(op).writes && is_of(op.operator_name(), "_c10d_functional::"))
      run::wait_for_collective(arguments.stack());
  }
  for (const c10::IValue& result : arguments.stack())
    stack->push_back(arguments.lazy_again(result));
}

/// A lazy tensor is waited for where it is read.
void already_waits(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (!lazy_impl(stack->back().toTensor())) call_collective(op, stack);
}

bool is_recorded(const c10::OperatorHandle& op) { return info_of(op).collective; }

/// Ops that c10d has kernels for our key for, for backends that are registered under its name: ours
/// replace them; the dispatcher warns of that.
void take_over(torch::Library& library, std::string_view name_space) {
  const run::IgnoredWarnings silent;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!is_of(name, name_space)) continue;
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op || !op->hasSchema()) continue;
    if (std::optional<torch::CppFunction> kernel = collective_kernel(*op))
      library.impl(without_namespace(name).c_str(), std::move(*kernel));
  }
}

}  // namespace

std::optional<torch::CppFunction> collective_kernel(const c10::OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  if (is_of(name, "_c10d_functional::wait_tensor") ||
      is_of(name, "_c10d_functional::_wrap_tensor_autograd"))
    return torch::CppFunction::makeFromBoxedFunction<&already_waits>();
  if (is_of(name, "c10d::") || (is_of(name, "_c10d_functional::") && !is_recorded(op)))
    return torch::CppFunction::makeFromBoxedFunction<&call_collective>();
  return std::nullopt;
}

const run::StorageVarRef& order_of_collectives() {
  static const auto* const var =
      new run::StorageVarRef(make_ref<run::StorageVar>(run::StorageVar::generator_tag()));
  return *var;
}

void register_collectives() {
  constexpr auto kKey = c10::DispatchKey::PrivateUse1;
  static torch::Library plain(torch::Library::IMPL, "c10d", kKey, __FILE__, __LINE__);
  static torch::Library functional(torch::Library::IMPL, "_c10d_functional", kKey, __FILE__,
                                   __LINE__);
  take_over(plain, "c10d::");
  take_over(functional, "_c10d_functional::");
}

}  // namespace lazyeng::record
