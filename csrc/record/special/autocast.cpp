// csrc/record/special/autocast.cpp: kernels at AutocastPrivateUse1.
#include "csrc/record/special/autocast.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "csrc/record/library.h"

namespace lazyeng::record {
namespace {

using c10::DispatchKey;

constexpr DispatchKey kWrappers = DispatchKey::AutocastPrivateUse1;

bool is_on(DispatchKey key) { return !c10::impl::tls_is_dispatch_key_excluded(key); }

/// Of the first tensor, as it reports itself.
std::optional<DispatchKey> key_of_device(c10::ArrayRef<c10::IValue> arguments) {
  for (const c10::IValue& argument : arguments) {
    at::Tensor tensor;
    if (argument.isTensor()) tensor = argument.toTensor();
    if (argument.isTensorList() && !argument.toListRef().empty())
      tensor = argument.toListRef()[0].toTensor();
    if (tensor.defined())
      return tensor.is_cuda() ? DispatchKey::AutocastCUDA : DispatchKey::AutocastCPU;
  }
  return std::nullopt;
}

/// By the rule of the device, which calls the op once more with what it has cast. If it has none,
/// the ops that this one is made of may have one.
void cast(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto key = key_of_device(torch::jit::last(*stack, op.schema().arguments().size()));
  if (!key || !is_on(*key) || !op.hasKernelForDispatchKey(*key))
    return op.redispatchBoxed(
        keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kWrappers), stack);
  const c10::impl::ExcludeDispatchKeyGuard once(kWrappers);
  op.callBoxedForDispatchKey(*key, *stack);
}

bool has_rule(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(DispatchKey::AutocastCPU) ||
         op.hasKernelForDispatchKey(DispatchKey::AutocastCUDA);
}

std::string namespace_of(const c10::OperatorName& name) {
  return name.name.substr(0, name.name.find("::"));
}

torch::Library& library_of(const std::string& space) {
  static auto* const libraries =
      new std::unordered_map<std::string, std::unique_ptr<torch::Library>>;
  std::unique_ptr<torch::Library>& library = (*libraries)[space];
  if (!library)
    library = std::make_unique<torch::Library>(torch::Library::IMPL, space,
                                               std::make_optional(kWrappers), __FILE__, __LINE__);
  return *library;
}

}  // namespace

void register_autocast() {
  // (torch has one for each device but this.)
  library_of("_").fallback(torch::CppFunction::makeFallthrough());
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (op && op->hasSchema() && has_rule(*op) && !op->hasKernelForDispatchKey(kWrappers))
      library_of(namespace_of(name))
          .impl(without_namespace(name).c_str(),
                torch::CppFunction::makeFromBoxedFunction<&cast>());
  }
}

void follow_autocast() {
  c10::impl::tls_set_dispatch_key_excluded(
      kWrappers, !is_on(DispatchKey::AutocastCPU) && !is_on(DispatchKey::AutocastCUDA));
}

}  // namespace lazyeng::record
