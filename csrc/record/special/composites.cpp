// csrc/record/special/composites.cpp: ops that torch writes in terms of others in a way that does
// not suit us.
#include "csrc/record/special/composites.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/to_compositeimplicitautograd_dispatch.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/library.h>

#include <array>

#include "csrc/record/lazy_tensor.h"
#include "csrc/record/library.h"
#include "csrc/record/recorder.h"
#include "csrc/record/special/factories.h"
#include "csrc/record/special/kernels_with_autograd.h"
#include "csrc/record/thread_mode.h"
#include "csrc/run/executor.h"
#include "csrc/run/failures/ignored_warnings.h"
#include "csrc/run/plain/plain_storage.h"

namespace lazyeng::record {
namespace {

/// Their decomposition looks at the memory of an integer tensor: lengths, places to split at, the
/// lengths of a packed sequence, a shape.
constexpr std::array<const char*, 5> kReadMemory = {
    "ctc_loss.Tensor", "tensor_split.tensor_indices_or_sections", "_pad_packed_sequence",
    "_pack_padded_sequence_backward", "_reshape_from_tensor"};

/// The same, and of what it computes from them: the largest index. The result is not lazy.
constexpr std::array<const char*, 4> kReadIndices = {
    "sparse_coo_tensor.indices", "sparse_coo_tensor.indices_size", "_sparse_coo_tensor_unsafe",
    "_validate_sparse_coo_tensor_args"};

/// Their decomposition starts from a factory, which gives a plain tensor. Not differentiable.
constexpr std::array<const char*, 5> kStartFromFactory = {
    "one_hot", "linalg_matrix_rank", "linalg_matrix_rank.tol_tensor",
    "linalg_matrix_rank.atol_rtol_tensor", "linalg_matrix_rank.atol_rtol_float"};

/// Their kernel works on memory, and is registered as a decomposition. Where a gradient is wanted
/// it is called at once.
constexpr std::array<const char*, 15> kWorkOnMemory = {
    "_sobol_engine_draw",
    "_sobol_engine_ff_",
    "_sobol_engine_scramble_",
    "_sobol_engine_initialize_state_",
    "choose_qparams_optimized",
    "fbgemm_linear_fp16_weight",
    "fbgemm_linear_fp16_weight.out",
    "fbgemm_linear_fp16_weight_fp32_activation",
    "fbgemm_linear_fp16_weight_fp32_activation.out",
    "fbgemm_linear_int8_weight",
    "fbgemm_linear_int8_weight_fp32_activation",
    "fbgemm_linear_quantize_weight",
    "fbgemm_pack_gemm_matrix_fp16",
    "fbgemm_pack_quantized_matrix",
    "fbgemm_pack_quantized_matrix.KN"};

/// Their error prints an argument.
constexpr std::array<const char*, 2> kPrint = {"meshgrid", "meshgrid.indexing"};

/// Their error prints something that they have computed from their arguments.
constexpr std::array<const char*, 1> kPrintResults = {"istft"};

/// Their kernel, not autograd's, refuses results that require grad; the engine's tensors do not.
constexpr std::array<const char*, 1> kRefuseGradInKernel = {"unbind_copy.int_out"};

/// Their decomposition looks at the memory of its argument, if that is on the CPU and no gradient
/// is asked for: the op is then recorded whole.
constexpr std::array<const char*, 1> kReadMemoryWithoutGrad = {"max_pool1d"};

/// On CUDA devices a kernel of torch's, with a derivative of its own; elsewhere a decomposition.
constexpr std::array<const char*, 1> kWholeOnCuda = {"_fused_rms_norm"};

/// Their decomposition starts from a factory, is differentiable: what the factory makes is lazy.
/// (Norms of empty matrices are zeros.)
constexpr std::array<const char*, 4> kFillFactory = {"pad_sequence", "linalg_matrix_norm",
                                                     "linalg_matrix_norm.str_ord", "vander"};

/// The same of numbers that they fill tensors with: on the CPU these are made at once, which is
/// less than to record it; on a device that is a launch, for which the program would wait if
/// another thread is launching.
constexpr std::array<const char*, 4> kFillNumber = {"scaled_dot_product_attention", "where.Scalar",
                                                    "where.ScalarSelf", "where.ScalarOther"};

bool integral(const at::Tensor& tensor) { return c10::isIntegralType(tensor.scalar_type(), false); }

/// Lengths on a device, of another dtype or with gaps: their decomposition copies them, which a
/// block records, and then looks at the memory of the copy.
void bring_lengths(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::vector<c10::Argument>& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].name().ends_with("_lengths") && !arguments[i].name().ends_with("batch_sizes"))
      continue;
    c10::IValue& argument = torch::jit::peek(*stack, i, arguments.size());
    const at::Tensor lengths = argument.toTensor();
    if (lengths.is_cpu() && lengths.scalar_type() == c10::kLong && lengths.is_contiguous())
      continue;
    if (!integral(lengths)) continue;  // an error that it knows
    wait_for_plain(lengths);
    const run::RealDispatch below;
    argument = lengths.to(c10::kCPU, c10::kLong).contiguous();
  }
}

/// Reads the integer tensors now, then decomposes.
void read_integers_first(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  read_integers(op, stack);
  if (thread_mode().inside()) bring_lengths(op, stack);
  op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, *stack);
}

/// torch's error prints the tensor that is no vector, and looks at its memory.
void read_what_is_no_vector(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  c10::IValue& argument = torch::jit::peek(*stack, 0, op.schema().arguments().size());
  c10::List<at::Tensor> tensors;
  bool refused = false;
  for (const at::Tensor& tensor : argument.toTensorVector()) {
    refused |= tensor.dim() > 1;
    tensors.push_back(tensor.dim() > 1 ? plain_of(tensor) : tensor);
  }
  if (!refused)
    return op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, *stack);
  argument = std::move(tensors);
  const OutsideBlock outside;
  op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, *stack);
}

/// Their error prints a tensor that they have computed: is there one, they are called again as if
/// outside of lazy().
void read_for_an_error(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const torch::jit::Stack args = *stack;
  try {
    return op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, *stack);
  } catch (const c10::Error&) {
  }
  *stack = args;
  for (c10::IValue& argument : *stack) {
    if (!argument.isTensor() || !argument.toTensor().defined()) continue;
    wait_for_plain(argument.toTensor());
    argument = plain_of(argument.toTensor());
  }
  const OutsideBlock outside;
  op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, *stack);
}

/// Decomposes as if outside lazy(), where what is computed from plain tensors is plain.
void read_indices_first(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  read_integers(op, stack);
  const size_t count = op.schema().arguments().size();
  for (size_t i = 0; i < count; ++i) {
    const c10::IValue& argument = torch::jit::peek(*stack, i, count);
    if (argument.isTensor() && argument.toTensor().defined()) wait_for_plain(argument.toTensor());
  }
  const OutsideBlock outside;
  op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, *stack);
}

/// A lazy tensor has another device than the name "lazyeng", and is there already: `to` returns it
/// as it is, if nothing else changes.
c10::Device place_for(const at::Tensor& self, c10::Device device) {
  return device.type() == c10::kPrivateUse1 && lazy_impl(self) ? backing_device() : device;
}

at::Tensor to_layout(const at::Tensor& self, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout> layout, std::optional<at::Device> device,
                     std::optional<bool> pin_memory, bool non_blocking, bool copy,
                     std::optional<at::MemoryFormat> memory_format) {
  if (device) device = place_for(self, *device);
  return at::compositeimplicitautograd::to(self, dtype, layout, device, pin_memory, non_blocking,
                                           copy, memory_format);
}

at::Tensor to_device(const at::Tensor& self, at::Device device, at::ScalarType dtype,
                     bool non_blocking, bool copy, std::optional<at::MemoryFormat> memory_format) {
  return at::compositeimplicitautograd::to(self, place_for(self, device), dtype, non_blocking, copy,
                                           memory_format);
}

void decompose_for_grad(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const at::Tensor& self = torch::jit::peek(*stack, 0, op.schema().arguments().size()).toTensor();
  if ((at::GradMode::is_enabled() && self.requires_grad()) || self._fw_grad(0).defined())
    return op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, *stack);
  const at::AutoDispatchBelowADInplaceOrView below;
  op.callBoxed(*stack);
}

/// In the words that torch has for all functions with out=.
void refuse_grad(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const size_t count = schema.arguments().size();
  for (size_t i = 0; i < count && at::GradMode::is_enabled(); ++i) {
    const c10::IValue& argument = torch::jit::peek(*stack, i, count);
    if (!schema.arguments()[i].is_out() || !argument.isTensorList()) continue;
    for (const at::Tensor& tensor : argument.toTensorVector())
      TORCH_CHECK(!tensor.requires_grad(), schema.name().substr(schema.name().find("::") + 2),
                  "(): functions with out=... arguments don't support automatic differentiation, "
                  "but one of the arguments requires grad.");
  }
  op.callBoxedForDispatchKey(c10::DispatchKey::AutogradCPU, *stack);
}

void with_lazy_factories(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const FactoryScope lazy(true);
  op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, *stack);
}

bool is_on_cuda(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  return torch::jit::peek(stack, 0, op.schema().arguments().size()).toTensor().device().is_cuda();
}

void with_lazy_factories_on_cuda(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (is_on_cuda(op, *stack)) return with_lazy_factories(op, stack);
  op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, *stack);
}

void differentiate_whole_on_cuda(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  op.callBoxedForDispatchKey(is_on_cuda(op, *stack) ? c10::DispatchKey::Autograd
                                                    : c10::DispatchKey::CompositeImplicitAutograd,
                             *stack);
}

void record_whole_on_cuda(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (is_on_cuda(op, *stack)) return record_whole(op, stack);
  op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, *stack);
}

/// torch.jit.trace sees convolutions as `_convolution`, which this op's decomposition calls: of
/// what is recorded whole it would make a constant.
void convolve(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (!torch::jit::tracer::isTracing()) return record_whole(op, stack);
  op.callBoxedForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd, *stack);
}

/// In eager it gives back what it was given.
void lift_fresh(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (!lazy_impl(stack->back().toTensor())) record_whole(op, stack);
}

/// A copy that shares memory until one of the two is written: the engine has writes in order, and
/// so may copy at once.
at::Tensor lazy_clone(const at::Tensor& self) { return self.clone(); }

template <size_t N, class Function>
void add_composites(torch::Library& library, const std::array<const char*, N>& names,
                    Function function) {
  for (const char* name : names) library.impl(name, function());
}

torch::Library library_for(c10::DispatchKey key) {
  return torch::Library(torch::Library::IMPL, "aten", std::make_optional(key), __FILE__, __LINE__);
}

}  // namespace

void read_integers(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::vector<c10::Argument>& arguments = op.schema().arguments();
  const size_t count = arguments.size();
  for (size_t i = 0; i < count; ++i) {
    if (arguments[i].alias_info()) continue;
    c10::IValue& argument = torch::jit::peek(*stack, i, count);
    if (!argument.isTensor() || !argument.toTensor().defined() || !integral(argument.toTensor()))
      continue;
    wait_for_plain(argument.toTensor());
    argument = plain_of(argument.toTensor());
  }
}

void register_opaque_composites() {
  static torch::Library autograd = library_for(c10::DispatchKey::AutogradPrivateUse1);
  static torch::Library backend = library_for(c10::DispatchKey::PrivateUse1);
  const auto reads = [] {
    return torch::CppFunction::makeFromBoxedFunction<&read_integers_first>();
  };
  const auto whole = [] { return torch::CppFunction::makeFromBoxedFunction<&record_whole>(); };
  add_composites(autograd, kReadMemory, reads);
  add_composites(backend, kReadMemory, reads);
  const auto indices = [] {
    return torch::CppFunction::makeFromBoxedFunction<&read_indices_first>();
  };
  add_composites(autograd, kReadIndices, indices);
  add_composites(backend, kReadIndices, indices);
  // (Which is their key where autograd is left out, as in inference mode.)
  static torch::Library sparse = library_for(c10::DispatchKey::SparsePrivateUse1);
  add_composites(sparse, kReadIndices, indices);
  const auto prints = [] {
    return torch::CppFunction::makeFromBoxedFunction<&read_what_is_no_vector>();
  };
  add_composites(autograd, kPrint, prints);
  add_composites(backend, kPrint, prints);
  const auto prints_results = [] {
    return torch::CppFunction::makeFromBoxedFunction<&read_for_an_error>();
  };
  add_composites(autograd, kPrintResults, prints_results);
  add_composites(backend, kPrintResults, prints_results);
  for (torch::Library* library : {&autograd, &backend}) {
    library->impl("to.dtype_layout", &to_layout);
    library->impl("to.device", &to_device);
  }
  add_composites(autograd, kRefuseGradInKernel,
                 [] { return torch::CppFunction::makeFromBoxedFunction<&refuse_grad>(); });
  add_composites(backend, kReadMemoryWithoutGrad, whole);
  add_composites(autograd, kReadMemoryWithoutGrad,
                 [] { return torch::CppFunction::makeFromBoxedFunction<&decompose_for_grad>(); });
  add_composites(backend, kWholeOnCuda,
                 [] { return torch::CppFunction::makeFromBoxedFunction<&record_whole_on_cuda>(); });
  add_composites(autograd, kWholeOnCuda, [] {
    return torch::CppFunction::makeFromBoxedFunction<&differentiate_whole_on_cuda>();
  });
  const auto fills = [] {
    return torch::CppFunction::makeFromBoxedFunction<&with_lazy_factories>();
  };
  add_composites(autograd, kFillFactory, fills);
  add_composites(backend, kFillFactory, fills);
  const auto numbers = [] {
    return torch::CppFunction::makeFromBoxedFunction<&with_lazy_factories_on_cuda>();
  };
  add_composites(autograd, kFillNumber, numbers);
  add_composites(backend, kFillNumber, numbers);
  add_composites(backend, kStartFromFactory, whole);
  add_composites(backend, kWorkOnMemory, whole);
  add_composites(autograd, kWorkOnMemory, [] {
    return torch::CppFunction::makeFromBoxedFunction<&decompose_with_autograd>();
  });
  const run::IgnoredWarnings silent;  // it replaces the kernel that records
  backend.impl("_lazy_clone", &lazy_clone);
  backend.impl("lift_fresh", torch::CppFunction::makeFromBoxedFunction<&lift_fresh>());
  backend.impl("convolution", torch::CppFunction::makeFromBoxedFunction<&convolve>());
  add_composites(autograd, kStartFromFactory, [] { return torch::CppFunction::makeFallthrough(); });
}

}  // namespace lazyeng::record
