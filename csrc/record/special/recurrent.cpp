// csrc/record/special/recurrent.cpp: lstm, gru and rnn of lazy tensors on CUDA devices, by cuDNN.
//
// torch's decomposition (aten/src/ATen/native/cudnn/RNN.cpp) compares the addresses of the weights
// with those in a buffer that holds all of them, and passes the buffer to `_cudnn_rnn`. The memory
// of lazy weights is not known yet, so here `_cudnn_rnn` gets no buffer, and makes one. Dropout
// between layers has a state that torch keeps to itself: such layers are decomposed into cells, as
// where there is no cuDNN; so are all layers on other devices.
#include "csrc/record/special/recurrent.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_cudnn_rnn.h>
#include <ATen/ops/cudnn_is_acceptable.h>
#include <torch/library.h>

#include "csrc/record/special/composites.h"
#include "csrc/run/executor.h"
#include "csrc/run/value.h"

namespace lazyeng::record {
namespace {

using torch::jit::peek;

enum CudnnMode : int64_t { kRelu = 0, kTanh = 1, kLstm = 2, kGru = 3 };

/// Of lazy tensors: torch's own answer leads to the decomposition that looks at memory.
bool never_acceptable(const at::Tensor&) { return false; }

/// The answer for a plain tensor of that dtype and device.
bool cudnn_takes(const at::Tensor& input) {
  if (!input.device().is_cuda() || input.numel() == 0) return false;
  const run::RealDispatch below;
  const c10::Storage nothing(c10::Storage::use_byte_size_t(), 0,
                             at::DataPtr(nullptr, input.device()), nullptr, false);
  const run::GeometryRef look = run::intern(
      {.sizes = {1}, .strides = {1}, .dtype = input.scalar_type(), .device = input.device()});
  return at::cudnn_is_acceptable(run::tensor_over(nothing, *look));
}

/// The arguments that all of them end with.
struct Options {
  bool has_biases;
  int64_t num_layers;
  double dropout;
  bool train, bidirectional, batch_first;

  bool draws() const { return train && dropout != 0 && num_layers > 1; }
};

/// Its place among the arguments: of the forms with `batch_sizes` one further.
struct Arguments {
  Arguments(const c10::OperatorHandle& op, torch::jit::Stack& stack)
      : stack(stack),
        count(op.schema().arguments().size()),
        packed(op.schema().overload_name() == "data") {}

  const c10::IValue& at(size_t i) const { return peek(stack, i, count); }
  const at::Tensor& input() const { return at(0).toTensor(); }
  const c10::IValue& hidden() const { return at(packed ? 2 : 1); }
  const c10::IValue& weights() const { return at(packed ? 3 : 2); }
  std::vector<int64_t> batch_sizes() const {
    if (!packed) return {};
    std::vector<int64_t> sizes(at(1).toTensor().size(0));
    const auto values = at(1).toTensor().accessor<int64_t, 1>();
    for (size_t i = 0; i < sizes.size(); ++i) sizes[i] = values[static_cast<int64_t>(i)];
    return sizes;
  }
  Options options() const {
    const size_t first = packed ? 4 : 3;
    return {at(first).toBool(),     at(first + 1).toInt(),  at(first + 2).toDouble(),
            at(first + 3).toBool(), at(first + 4).toBool(), !packed && at(first + 5).toBool()};
  }

  torch::jit::Stack& stack;
  const size_t count;
  const bool packed;
};

template <CudnnMode mode>
void by_cudnn(const Arguments& arguments) {
  const Options options = arguments.options();
  const std::vector<at::Tensor> weights = arguments.weights().toTensorVector();
  at::Tensor hx, cx;
  if constexpr (mode == kLstm) {
    const std::vector<at::Tensor> hidden = arguments.hidden().toTensorVector();
    TORCH_CHECK(hidden.size() == 2, "lstm expects two hidden states");
    hx = hidden[0];
    cx = hidden[1];
  } else {
    hx = arguments.hidden().toTensor();
  }
  const int64_t hidden_size = cx.defined() ? cx.size(2) : hx.size(2);
  const int64_t proj_size = hx.size(2) != hidden_size ? hx.size(2) : 0;
  const int64_t each = (options.has_biases ? 4 : 2) + (proj_size != 0);
  auto [output, hy, cy, reserve, buffer] =
      at::_cudnn_rnn(arguments.input(), weights, each, std::nullopt, hx,
                     cx.defined() ? std::optional<at::Tensor>(cx) : std::nullopt, mode, hidden_size,
                     proj_size, options.num_layers, options.batch_first, options.dropout,
                     options.train, options.bidirectional, arguments.batch_sizes(), std::nullopt);
  torch::jit::drop(arguments.stack, arguments.count);
  arguments.stack.insert(arguments.stack.end(), {output, hy});
  if constexpr (mode == kLstm) arguments.stack.emplace_back(cy);
}

template <CudnnMode mode>
void layer(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  read_integers(op, stack);  // (the sizes of batches)
  const Arguments arguments(op, *stack);
  if (cudnn_takes(arguments.input()) && !arguments.options().draws())
    return by_cudnn<mode>(arguments);
  op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, *stack);
}

template <CudnnMode mode>
void add_network(torch::Library& library, const std::string& name) {
  for (const char* form : {".input", ".data"})
    library.impl((name + form).c_str(), torch::CppFunction::makeFromBoxedFunction<&layer<mode>>());
}

void fill(torch::Library& library) {
  library.impl("cudnn_is_acceptable", &never_acceptable);
  add_network<kRelu>(library, "rnn_relu");
  add_network<kTanh>(library, "rnn_tanh");
  add_network<kLstm>(library, "lstm");
  add_network<kGru>(library, "gru");
}

}  // namespace

void register_recurrent_layers() {
  static torch::Library autograd(torch::Library::IMPL, "aten",
                                 std::make_optional(c10::DispatchKey::AutogradPrivateUse1),
                                 __FILE__, __LINE__);
  static torch::Library backend(torch::Library::IMPL, "aten",
                                std::make_optional(c10::DispatchKey::PrivateUse1), __FILE__,
                                __LINE__);
  fill(autograd);
  fill(backend);
}

}  // namespace lazyeng::record
