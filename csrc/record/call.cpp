// csrc/record/call.cpp: reading the arguments of a call.
#include "csrc/record/call.h"

#include <ATen/core/Tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "csrc/record/lazy_tensor.h"
#include "csrc/record/recorder.h"
#include "csrc/record/special/components.h"
#include "csrc/record/special/reducers.h"
#include "csrc/record/thread_mode.h"
#include "csrc/run/executor.h"
#include "csrc/run/plain/plain_storage.h"
#include "csrc/run/plain/plain_values.h"

namespace lazyeng::record {
namespace {

c10::Device default_device(c10::kCPU);  // written at import only

/// A plain number, such as an optimizer's step count, is copied when it is read outside lazy():
/// eager code may change it at once. Not if it belongs to a storage that the engine knows.
bool can_be_copied(const at::Tensor& tensor) {
  return tensor.dim() == 0 && tensor.is_cpu() && !tensor.is_conj() && !tensor.is_neg() &&
         !run::plain_storages().find(tensor);
}

constexpr c10::DispatchKeySet kWrappersOfFunc({c10::DispatchKey::FuncTorchBatched,
                                               c10::DispatchKey::FuncTorchGradWrapper,
                                               c10::DispatchKey::Functionalize});

/// A wrapper of torch.func comes here where somebody has taken the keys of torch.func away, as the
/// call of a tensor subclass on what it holds, and torch.tensor(). It is refused as by kernels:
/// those of views ask for its storage, others for its memory.
void refuse_wrapper(const run::OpInfo& op, const at::Tensor& tensor) {
  if (!tensor.key_set().has_any(kWrappersOfFunc)) return;
  if (std::ranges::any_of(op.returns, &run::ReturnInfo::may_alias)) tensor.storage();
  tensor.unsafeGetTensorImpl()->data_ptr_impl<char>();
  TORCH_CHECK(false, "Cannot access data pointer of Tensor that doesn't have storage");
}

class Reader {
 public:
  explicit Reader(Call& call) : call_(call) {}

  void tensor(const at::Tensor& tensor, const run::ArgInfo& info) {
    const bool written = info.write;
    run::TensorArg& arg = call_.tensors.emplace_back();
    run::GeometryRef& look = call_.looks.emplace_back();
    arg.written = written;
    arg.silent = info.silent;
    arg.overwritten = info.overwritten;
    if (!tensor.defined()) {
      // nothing to look up
    } else if (LazyImpl* lazy = lazy_impl(tensor)) {
      if (lazy->resized_outside()) [[unlikely]]
        follow_resize(tensor);
      arg.value = lazy->value();
      current_recorder()->follow_moves(arg.value->var());
      arg.another_object = is_written_through_another(call_, *lazy);
      look = arg.value->geometry_ref();
    } else if (!recordable(tensor)) {
      refuse_wrapper(call_.info, tensor);
      arg.raw = tensor;
      call_.must_run = true;
      read_components(call_, tensor, written);
    } else if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      arg.raw = tensor;  // nobody else holds it
      look = run::geometry_of(tensor);
    } else if (!written && !thread_mode().inside() &&
               (can_be_copied(tensor) || is_bucket(tensor))) {
      const run::RealDispatch below;
      arg.raw = tensor.clone();
      look = run::geometry_of(arg.raw);
    } else {
      arg.value = value_of(tensor);
      look = arg.value->geometry_ref();
      arg.raw = tensor;
      call_.writes_plain |= written;
    }
    if (written) call_.written.push_back(tensor);
  }

 private:
  /// Of a plain tensor. What the call has twice its kernel gets twice, too, as one object:
  /// attention of one tensor for query, key and value has a path of its own, with other last bits.
  run::ValueRef value_of(const at::Tensor& tensor) const {
    if (thread_mode().inside()) return run::plain_values().value_of(tensor);
    constexpr size_t kFew = 8;
    if (call_.tensors.size() <= kFew)
      for (const run::TensorArg& earlier : call_.tensors)
        if (earlier.value && earlier.raw.is_same(tensor)) return earlier.value;
    return run::value_of_argument(tensor);
  }

  Call& call_;
};

template <class List>
void read_list(Reader& reader, const List& list, const run::ArgInfo& info) {
  for (size_t i = 0; i < list.size(); ++i) reader.tensor(list[i], info);
}

void read_tensors(Call& call, Reader& reader, const c10::IValue& input, const run::ArgInfo& info) {
  if (input.isTensor()) {
    read_tensor(call, input.toTensor(), info);
  } else if (input.isNone()) {
    reader.tensor(at::Tensor(), {});
    call.args.emplace_back();
  } else if (info.kind == run::ArgKind::tensor_lists) {
    std::vector<int64_t> lengths;
    for (const c10::IValue& list : input.toListRef()) {
      const std::vector<at::Tensor> tensors = list.toTensorVector();
      read_list(reader, tensors, info);
      lengths.push_back(static_cast<int64_t>(tensors.size()));
    }
    call.args.emplace_back(lengths);
  } else if (input.isTensorList()) {
    const std::vector<at::Tensor> list = input.toTensorVector();
    read_list(reader, list, info);
    call.args.emplace_back(static_cast<int64_t>(list.size()));
  } else {
    // Optional tensors; TorchScript's list of them does not have that type.
    const c10::ArrayRef<c10::IValue> list = input.toListRef();
    for (const c10::IValue& element : list)
      reader.tensor(element.isNone() ? at::Tensor() : element.toTensor(), info);
    call.args.emplace_back(static_cast<int64_t>(list.size()));
  }
}

/// A device as tensors report it: "cuda" is the current one.
c10::Device with_index(c10::Device device) {
  if (device.has_index() || !device.is_cuda()) return device;
  return c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

c10::IValue read_other(Call& call, c10::IValue input) {
  if (input.isDevice()) {
    const c10::Device device = input.toDevice();
    call.to_lazyeng = device.type() == c10::kPrivateUse1;
    TORCH_CHECK(!call.to_lazyeng || device.index() <= 0,
                "lazyeng: invalid device ordinal, expected lazyeng or lazyeng:0, got ", device);
    return call.to_lazyeng ? backing_device() : with_index(device);
  }
  if (input.isGenerator() && input.toGenerator().device().type() == c10::kPrivateUse1) return {};
  if (input.isSymInt() || input.isSymFloat() || input.isSymBool()) call.must_run = true;
  return input;
}

bool is_inference(const c10::IValue& input) {
  return input.isTensor() && input.toTensor().defined() && input.toTensor().is_inference();
}

}  // namespace

void read_tensor(Call& call, const at::Tensor& tensor, const run::ArgInfo& info) {
  Reader(call).tensor(tensor, info);
  if (tensor.defined())
    call.args.emplace_back();
  else
    call.args.emplace_back(tensor);
}

Call read_call(const run::OpInfo& info, torch::jit::Stack* stack) {
  const size_t count = info.args.size();
  Call call(info);
  c10::IValue* const inputs = stack->data() + (stack->size() - count);
  if (keeps_inputs(info)) call.inputs.assign(inputs, inputs + count);
  call.of_inference = count > 0 && is_inference(inputs[0]);
  Reader reader(call);
  for (size_t i = 0; i < count; ++i) {
    const run::ArgInfo& arg = info.args[i];
    const bool list = run::is_list(arg.kind);
    if (list && inputs[i].isNone())
      call.args.emplace_back();
    else if (list || arg.kind == run::ArgKind::tensor)
      read_tensors(call, reader, inputs[i], arg);
    else
      call.args.push_back(read_other(call, std::move(inputs[i])));
  }
  torch::jit::drop(*stack, count);
  return call;
}

bool recordable(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const c10::DeviceType device = impl->device_type();
  constexpr c10::DispatchKeySet special({c10::DispatchKey::Python, c10::DispatchKey::ZeroTensor,
                                         c10::DispatchKey::MkldnnCPU,
                                         c10::DispatchKey::Functionalize});
  return (device == c10::kCPU || device == c10::kCUDA) && impl->layout() == c10::kStrided &&
         impl->has_storage() && !tensor.is_quantized() && !impl->key_set().has_any(special) &&
         !impl->is_nested();
}

bool is_scaled(const Call& call) {
  return std::any_of(call.args.begin(), call.args.end(), [](const c10::IValue& arg) {
    return arg.isScalar() && !arg.toScalar().equal(1);
  });
}

bool share_memory(const Call& call, size_t i, size_t j) {
  const run::ValueRef &a = call.tensors[i].value, &b = call.tensors[j].value;
  if (!a || !b || a->var_ref() != b->var_ref()) return false;
  if (a == b) return true;  // (an empty one, too: kernels ask whether two arguments are one tensor)
  return call.info.offset_matters || run::may_overlap(a->geometry(), b->geometry());
}

/// Optimizers write lists of thousands.
static bool is_written_through_another_of_many(Call& call, const LazyImpl& lazy) {
  if (!call.writers) call.writers = std::make_unique<Writers>();
  auto& [by_value, seen] = *call.writers;
  for (; seen < call.written.size(); ++seen) {
    const LazyImpl* const written = lazy_impl(call.written[seen]);
    if (!written) continue;
    const auto [at, fresh] = by_value.try_emplace(written->value().get(), written);
    if (!fresh && at->second != written) at->second = nullptr;
  }
  const auto found = by_value.find(lazy.value().get());
  return found != by_value.end() && found->second != &lazy;
}

bool is_written_through_another(Call& call, const LazyImpl& lazy) {
  constexpr size_t kFew = 8;
  if (call.written.size() > kFew) return is_written_through_another_of_many(call, lazy);
  return std::ranges::any_of(call.written, [&](const at::Tensor& tensor) {
    const LazyImpl* written = lazy_impl(tensor);
    return written && written != &lazy && written->value() == lazy.value();
  });
}

c10::Device backing_device() { return default_device; }
void set_backing_device(c10::Device device) { default_device = device; }

void trace_record(const Call& call, const run::Node* node) noexcept {
  if (call.begin == 0) return;
  run::TraceEvent event{
      .kind = run::TraceEvent::Kind::record, .op = &call.info, .begin = call.begin};
  if (node) {
    event.number = node->number;
    event.bytes = node->cost_now();
    event.stack = node->stack;
  }
  run::trace(std::move(event));
}

}  // namespace lazyeng::record
