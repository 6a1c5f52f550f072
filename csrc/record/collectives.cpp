// csrc/record/collectives.cpp: torch.distributed's operations on lazy tensors.
//
// A backend (gloo, NCCL) reads and writes memory on threads of its own until the caller waits for
// the Work that it is given, and the schemas do not say what is written. So a collective is no op
// that could be recorded: it is called once everything recorded is complete, with tensors over the
// real memory. From then on the rules are eager's: nobody touches that memory before the Work ends.
#include "csrc/record/collectives.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <unordered_map>

#include "csrc/record/ignored_warnings.h"
#include "csrc/record/lazy_tensor.h"
#include "csrc/record/recorder.h"
#include "csrc/run/executor.h"

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

void call_collective(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t count = op.schema().arguments().size();
  // Reads that are pending look at what the backend may write, so the last write is not enough.
  current_recorder()->wait_for_all();
  RealArguments arguments(torch::jit::pop(*stack, count));
  {
    const run::RealDispatch below;
    op.callBoxed(&arguments.stack());
  }
  for (const c10::IValue& result : arguments.stack())
    stack->push_back(arguments.lazy_again(result));
}

/// All ops of the namespace, whose kernels for our key (c10d has some, for backends that are
/// registered under its name) ours replace; the dispatcher warns of that.
void take_over(torch::Library& library, const std::string& name_space) {
  const IgnoredWarnings silent;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.rfind(name_space + "::", 0) != 0) continue;
    const std::string overload = name.overload_name.empty() ? "" : "." + name.overload_name;
    library.impl((name.name.substr(name_space.size() + 2) + overload).c_str(), collective_kernel());
  }
}

}  // namespace

bool is_collective(const c10::OperatorName& name) {
  return name.name.rfind("c10d::", 0) == 0 || name.name.rfind("_c10d_functional::", 0) == 0;
}

torch::CppFunction collective_kernel() {
  return torch::CppFunction::makeFromBoxedFunction<&call_collective>();
}

// Functional collectives return new tensors, which the backend writes until wait_tensor: they come
// back plain, as their users hold them until then.
void register_collectives() {
  constexpr auto kKey = c10::DispatchKey::PrivateUse1;
  static torch::Library plain(torch::Library::IMPL, "c10d", kKey, __FILE__, __LINE__);
  static torch::Library functional(torch::Library::IMPL, "_c10d_functional", kKey, __FILE__,
                                   __LINE__);
  take_over(plain, "c10d");
  take_over(functional, "_c10d_functional");
}

}  // namespace lazyeng::record
