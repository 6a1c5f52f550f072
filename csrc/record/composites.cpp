// csrc/record/composites.cpp: ops that torch writes in terms of others in a way that does not suit
// us.
#include "csrc/record/composites.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <array>

#include "csrc/record/gate.h"
#include "csrc/record/lazy_tensor.h"
#include "csrc/record/recorder.h"

namespace lazyeng::record {
namespace {

/// Their decomposition looks at the memory of an integer tensor: lengths, places to split at, the
/// batch sizes of a packed sequence.
constexpr std::array<const char*, 8> kReadMemory = {"ctc_loss.Tensor",
                                                    "tensor_split.tensor_indices_or_sections",
                                                    "lstm.data",
                                                    "gru.data",
                                                    "rnn_tanh.data",
                                                    "rnn_relu.data",
                                                    "_pad_packed_sequence",
                                                    "_pack_padded_sequence_backward"};

/// Their decomposition starts from a factory, which gives a plain tensor. Not differentiable.
constexpr std::array<const char*, 5> kStartFromFactory = {
    "one_hot", "linalg_matrix_rank", "linalg_matrix_rank.tol_tensor",
    "linalg_matrix_rank.atol_rtol_tensor", "linalg_matrix_rank.atol_rtol_float"};

bool integral(const at::Tensor& tensor) { return c10::isIntegralType(tensor.scalar_type(), false); }

/// Reads the integer tensors now, then decomposes.
void read_integers_first(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t count = op.schema().arguments().size();
  for (size_t i = 0; i < count; ++i) {
    c10::IValue& argument = torch::jit::peek(*stack, i, count);
    if (!argument.isTensor() || !argument.toTensor().defined() || !integral(argument.toTensor()))
      continue;
    LazyImpl* lazy = lazy_impl(argument.toTensor());
    if (!lazy) continue;
    const Gate::Inside inside;
    const run::ValueRef value = lazy->value();
    current_recorder()->wait_and_check(*value);
    argument = value->plain();
  }
  op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, *stack);
}

void record_whole(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  static std::mutex mutex;
  static auto* const infos = new std::map<const c10::FunctionSchema*, std::unique_ptr<run::OpInfo>>;
  const Gate::Inside inside;
  const run::OpInfo* info = nullptr;
  {
    std::lock_guard lock(mutex);
    std::unique_ptr<run::OpInfo>& known = (*infos)[&op.schema()];
    if (!known) known = std::make_unique<run::OpInfo>(op);
    info = known.get();
  }
  current_recorder()->record(*info, stack);
}

template <size_t N, class Function>
void add(torch::Library& library, const std::array<const char*, N>& names, Function function) {
  for (const char* name : names) library.impl(name, function());
}

torch::Library library_for(c10::DispatchKey key) {
  return torch::Library(torch::Library::IMPL, "aten", std::make_optional(key), __FILE__, __LINE__);
}

}  // namespace

void register_opaque_composites() {
  static torch::Library autograd = library_for(c10::DispatchKey::AutogradPrivateUse1);
  static torch::Library backend = library_for(c10::DispatchKey::PrivateUse1);
  const auto reads = [] {
    return torch::CppFunction::makeFromBoxedFunction<&read_integers_first>();
  };
  const auto whole = [] { return torch::CppFunction::makeFromBoxedFunction<&record_whole>(); };
  add(autograd, kReadMemory, reads);
  add(backend, kReadMemory, reads);
  add(backend, kStartFromFactory, whole);
  add(autograd, kStartFromFactory, [] { return torch::CppFunction::makeFallthrough(); });
}

}  // namespace lazyeng::record
