// csrc/record/special/temporaries.cpp: in-place ops on plain tensors that only C++ knows yet.
#include "csrc/record/special/temporaries.h"

#include "csrc/record/lazy_tensor.h"
#include "csrc/record/recorder.h"
#include "csrc/run/device/launch_order.h"
#include "csrc/run/executor.h"
#include "csrc/run/plain/plain_storage.h"

namespace lazyeng::record {
namespace {

bool known_to_python(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj() != nullptr;
}

bool is_temporary(const at::Tensor& tensor) {
  return tensor.has_storage() && !known_to_python(tensor) && !run::plain_storages().find(tensor);
}

bool is_settled(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return true;
  const run::StorageVarRef var = run::plain_storages().find(tensor);
  return !var || !var->awaited();
}

bool runs_at_once(const run::OpInfo& info, const torch::jit::Stack& stack) {
  const size_t count = info.args.size();
  bool writes = false;  // (the statistics of native_batch_norm may be left out)
  for (size_t i = 0; i < count; ++i) {
    const run::ArgInfo& arg = info.args[i];
    if (run::is_list(arg.kind)) return false;
    const c10::IValue& input = torch::jit::peek(stack, i, count);
    if (arg.kind != run::ArgKind::tensor || !input.isTensor()) continue;
    const at::Tensor& tensor = input.toTensor();
    if (!tensor.defined()) continue;
    if (lazy_impl(tensor) || !(arg.write ? is_temporary(tensor) : is_settled(tensor))) return false;
    writes |= arg.write;
  }
  return writes;
}

/// Copies and ops on other streams are settled when they are launched.
void give_to_current_stream(const run::OpInfo& info, const torch::jit::Stack& stack) {
  for (size_t i = 0; i < info.args.size(); ++i) {
    const c10::IValue& input = torch::jit::peek(stack, i, info.args.size());
    if (!input.isTensor() || !input.toTensor().defined() || input.toTensor().is_cpu()) continue;
    if (const run::StorageVarRef var = run::plain_storages().find(input.toTensor()))
      run::give_to_current_stream(*var);
  }
}

}  // namespace

bool write_temporary(const run::OpInfo& info, torch::jit::Stack* stack) {
  if (!info.writes || !runs_at_once(info, *stack)) return false;
  if (info.random) current_recorder()->wait_for_generators();
  give_to_current_stream(info, *stack);
  const run::RealDispatch below;
  info.handle.callBoxed(*stack);
  return true;
}

}  // namespace lazyeng::record
