// csrc/record/special/mkldnn_tensors.cpp: standing in front of the kernels.
#include "csrc/record/special/mkldnn_tensors.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <unordered_map>

#include "csrc/record/library.h"
#include "csrc/record/process/gate.h"
#include "csrc/record/recorder.h"
#include "csrc/record/thread_mode.h"
#include "csrc/run/executor.h"
#include "csrc/run/failures/ignored_warnings.h"

namespace lazyeng::record {
namespace {

/// torch's own. Written at import only.
std::unordered_map<c10::OperatorName, c10::SafeKernelFunction>& kernels() {
  static auto* const instance = new std::unordered_map<c10::OperatorName, c10::SafeKernelFunction>;
  return *instance;
}

/// Kernels for all backends that call oneDNN.
constexpr std::array<std::string_view, 2> kForAll = {"aten::convolution",
                                                     "aten::convolution_backward"};

bool calls_onednn(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::MkldnnCPU) ||
         std::ranges::find(kForAll, op.operator_name().name) != kForAll.end();
}

c10::IValue plain(const c10::IValue& argument) {
  if (argument.isTensor() && argument.toTensor().defined()) {
    wait_for_plain(argument.toTensor());
    return plain_of(argument.toTensor());
  }
  if (!argument.isTensorList()) return argument;
  c10::List<at::Tensor> list;
  for (const at::Tensor& tensor : argument.toTensorVector())
    list.push_back(plain(tensor).toTensor());
  return list;
}

void call_on_plain(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                   torch::jit::Stack* stack) {
  if (!run::RealDispatch::active()) {
    const Gate::Inside inside;
    const std::vector<c10::Argument>& arguments = op.schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      c10::IValue& argument = torch::jit::peek(*stack, i, arguments.size());
      if (!arguments[i].alias_info()) argument = plain(argument);
    }
  }
  const OutsideBlock outside;  // (what it calls is to run now, too)
  kernels().at(op.operator_name()).callBoxed(op, keys, stack);
}

}  // namespace

void register_mkldnn_tensors() {
  const run::IgnoredWarnings silent;  // ours replace kernels
  static auto* const libraries = new std::map<std::string, torch::Library>;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op || !op->hasSchema() || !calls_onednn(*op)) continue;
    kernels().emplace(name, op->getComputedKernelForDispatchKey(c10::DispatchKey::MkldnnCPU));
    const std::string name_space = name.name.substr(0, name.name.find("::"));
    const auto [library, fresh] =
        libraries->try_emplace(name_space, torch::Library::IMPL, name_space,
                               std::make_optional(c10::DispatchKey::MkldnnCPU), __FILE__, __LINE__);
    library->second.impl(without_namespace(name).c_str(),
                         torch::CppFunction::makeFromBoxedFunction<&call_on_plain>());
  }
}

}  // namespace lazyeng::record
