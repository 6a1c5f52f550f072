// tests/simulated_cuda/ops.h: each op is a launch of its CPU kernel on the same memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sub.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "memory.h"

namespace {

bool on_device(const at::Tensor& tensor) { return tensor.defined() && tensor.is_cuda(); }

/// The same memory as a CPU tensor.
at::Tensor host_twin(const at::Tensor& tensor) {
  if (!on_device(tensor)) return tensor;
  at::Tensor twin = at::from_blob(const_cast<void*>(tensor.storage().data()),
                                  {int64_t(tensor.storage().nbytes())}, at::kByte);
  at::Tensor typed = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(twin.storage()), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  typed.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(),
                                                     tensor.storage_offset());
  typed._set_conj(tensor.is_conj());
  typed._set_neg(tensor.is_neg());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number())
    typed.unsafeGetTensorImpl()->set_wrapped_number(true);
  return typed;
}

/// As `host_twin`, for a stream's thread: it lets go of its tensors, and of one that has an object
/// of Python it could only with the GIL, which the thread that waits for the stream may hold.
at::Tensor queued_twin(const at::Tensor& tensor) {
  if (on_device(tensor) || !tensor.defined()) return host_twin(tensor);
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(), false));
}

/// The same layout without memory.
at::Tensor meta_twin(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.unsafeGetTensorImpl()->is_wrapped_number()) return tensor;
  const c10::Storage nothing(c10::Storage::use_byte_size_t(), tensor.storage().nbytes(),
                             at::DataPtr(nullptr, c10::kMeta), c10::GetAllocator(c10::kMeta),
                             /*resizable=*/true);
  at::Tensor twin = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(nothing), c10::DispatchKeySet(c10::DispatchKey::Meta), tensor.dtype());
  twin.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(),
                                                    tensor.storage_offset());
  return twin;
}

at::Tensor device_tensor(const c10::Storage& storage, const at::Tensor& like) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA), like.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(),
                                                      like.storage_offset());
  return tensor;
}

at::Tensor new_device_tensor(const at::Tensor& like, int device) {
  const int before = std::exchange(current_device, device);
  const size_t nbytes = like.storage().nbytes();
  c10::Storage storage(c10::Storage::use_byte_size_t(), nbytes, device_memory.allocate(nbytes),
                       &device_memory, true);
  current_device = before;
  return device_tensor(storage, like);
}

template <class F>
c10::IValue map_tensors(const c10::IValue& value, F&& f) {
  if (value.isTensor()) return f(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> mapped;
    for (const at::Tensor& tensor : value.toTensorVector()) mapped.push_back(f(tensor));
    return mapped;
  }
  if (value.isList() && value.toList().elementType()->kind() == c10::TypeKind::OptionalType) {
    c10::List<std::optional<at::Tensor>> mapped;
    for (const c10::IValue& element : value.toListRef())
      mapped.push_back(element.isNone() ? std::nullopt
                                        : std::optional<at::Tensor>(f(element.toTensor())));
    return mapped;
  }
  return value;
}

c10::IValue with_device(const c10::IValue& value, c10::Device device) {
  return value.isDevice() ? c10::IValue(device) : value;
}

int device_of(const torch::jit::Stack& args) {
  int device = -1;
  for (const c10::IValue& arg : args) {
    if (arg.isDevice() && arg.toDevice().is_cuda())
      device = arg.toDevice().has_index() ? arg.toDevice().index() : current_device;
    map_tensors(arg, [&](const at::Tensor& tensor) {
      if (on_device(tensor) && device < 0) device = tensor.device().index();
      return tensor;
    });
  }
  return device < 0 ? current_device : device;
}

/// Kernels run without autograd and without whatever mode the launching thread had.
struct BelowEverything {
  const c10::impl::LocalDispatchKeySet before = c10::impl::tls_local_dispatch_key_set();
  BelowEverything() {
    auto keys = before;
    keys.included_ = c10::DispatchKeySet(c10::DispatchKey::BackendSelect);
    keys.excluded_ =
        c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;
    c10::impl::_force_tls_local_dispatch_key_set(keys);
  }
  ~BelowEverything() { c10::impl::_force_tls_local_dispatch_key_set(before); }
};

const c10::AliasInfo* alias_of(const c10::Argument& arg) { return arg.alias_info(); }
bool is_written(const c10::Argument& arg) { return alias_of(arg) && alias_of(arg)->isWrite(); }

/// The argument that a return is, or views.
int aliased_argument(const c10::FunctionSchema& schema, const c10::Argument& ret) {
  if (!alias_of(ret)) return -1;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::AliasInfo* alias = alias_of(schema.arguments()[i]);
    if (alias && alias->beforeSets() == alias_of(ret)->beforeSets()) return int(i);
  }
  return -1;
}

void resize_storage(const at::Tensor& tensor, size_t nbytes) {
  if (tensor.storage().nbytes() >= nbytes) return;
  const int before = std::exchange(current_device, tensor.device().index());
  c10::Storage storage = tensor.storage();
  storage.set_data_ptr_noswap(device_memory.allocate(nbytes));
  storage.set_nbytes(nbytes);
  current_device = before;
}

/// Results whose shapes only the values tell: the device is waited for, as CUDA's kernels do.
void run_with_host(const c10::OperatorHandle& op, torch::jit::Stack args, int device,
                   torch::jit::Stack* stack) {
  may_wait();
  stream_of(device).wait();
  check(device);
  const BelowEverything below;
  torch::jit::Stack results;
  for (const c10::IValue& arg : args)
    results.push_back(with_device(map_tensors(arg, host_twin), c10::kCPU));
  op.callBoxed(results);
  for (const c10::IValue& result : results)
    stack->push_back(map_tensors(result, [&](const at::Tensor& tensor) {
      if (!tensor.defined() || tensor.is_cuda()) return tensor;
      at::Tensor made = new_device_tensor(tensor, device);
      stream_of(device).wait();  // the memory may have been freed just now
      host_twin(made).copy_(tensor);
      return made;
    }));
}

/// x[mask]
bool indexes_by_mask(const torch::jit::Stack& args) {
  for (const c10::IValue& arg : args) {
    if (!arg.isList() || arg.toList().elementType()->kind() != c10::TypeKind::OptionalType)
      continue;
    for (const c10::IValue& index : arg.toListRef())
      if (index.isTensor() && index.toTensor().scalar_type() == at::kBool) return true;
  }
  return false;
}

bool returns_only_tensors(const c10::FunctionSchema& schema) {
  for (const c10::Argument& ret : schema.returns())
    if (!ret.type()->isSubtypeOf(*c10::TensorType::get()) &&
        !ret.type()->isSubtypeOf(*c10::ListType::ofTensors()))
      return false;
  return true;
}

/// An op that no capture permits, as a test wants it: "aten::tanh".
std::string never_captured;

void run_op(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  if (own_capture && schema.name() == never_captured) own_capture->refuse("it waits");
  const torch::jit::Stack args = torch::jit::pop(*stack, schema.arguments().size());
  const int device = device_of(args);
  check(device);
  if (!returns_only_tensors(schema) || op.hasTag(at::Tag::dynamic_output_shape) ||
      op.hasTag(at::Tag::data_dependent_output) || indexes_by_mask(args))
    return run_with_host(op, args, device, stack);

  torch::jit::Stack metas;
  for (const c10::IValue& arg : args)
    metas.push_back(with_device(map_tensors(arg, meta_twin), c10::kMeta));
  const torch::jit::Stack meta_args = metas;
  try {
    const BelowEverything below;
    op.callBoxed(metas);
  } catch (const c10::NotImplementedError&) {
    return run_with_host(op, args, device, stack);
  }

  // Written arguments take the metadata that they have afterwards.
  for (size_t i = 0; i < args.size(); ++i) {
    if (!is_written(schema.arguments()[i]) || !args[i].isTensor()) continue;
    const at::Tensor &real = args[i].toTensor(), &meta = meta_args[i].toTensor();
    if (!on_device(real)) continue;
    resize_storage(real, meta.storage().nbytes());
    real.unsafeGetTensorImpl()->set_sizes_and_strides(meta.sizes(), meta.strides(),
                                                      meta.storage_offset());
  }
  // What it returns: an argument, a view of one, or new tensors.
  torch::jit::Stack results;
  std::vector<at::Tensor> made;
  bool only_views = !schema.returns().empty();
  for (size_t r = 0; r < schema.returns().size(); ++r) {
    const c10::Argument& ret = schema.returns()[r];
    const int aliased = aliased_argument(schema, ret);
    if (aliased >= 0 && is_written(schema.arguments()[aliased])) {
      results.push_back(args[aliased]);
      only_views = false;
    } else if (aliased >= 0) {
      const c10::Storage storage = args[aliased].toTensor().storage();
      results.push_back(
          map_tensors(metas[r], [&](const at::Tensor& m) { return device_tensor(storage, m); }));
    } else {
      only_views = false;
      results.push_back(map_tensors(metas[r], [&](const at::Tensor& m) {
        if (!m.defined()) return m;
        made.push_back(new_device_tensor(m, device));
        return made.back();
      }));
    }
  }
  if (!only_views) {
    torch::jit::Stack hosts;
    for (const c10::IValue& arg : args)
      hosts.push_back(with_device(map_tensors(arg, queued_twin), c10::kCPU));
    std::vector<at::Tensor> twins;
    for (const at::Tensor& tensor : made) twins.push_back(host_twin(tensor));
    launch(stream_of(device), [op, hosts, twins, schema] {
      const BelowEverything below;
      torch::jit::Stack stack = hosts;  // (a graph runs it many times)
      op.callBoxed(stack);
      size_t next = 0;
      for (size_t r = 0; r < stack.size(); ++r) {
        if (aliased_argument(schema, schema.returns()[r]) >= 0) continue;
        map_tensors(stack[r], [&](const at::Tensor& tensor) {
          if (tensor.defined()) at::Tensor(twins[next++]).copy_(tensor);
          return tensor;
        });
      }
    });
  }
  for (c10::IValue& result : results) stack->push_back(std::move(result));
}

at::Tensor empty_strided(c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  const int index = device && device->has_index() ? device->index() : current_device;
  check(index);
  const at::Tensor meta =
      at::empty_strided(C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides),
                        at::TensorOptions()
                            .dtype(dtype.value_or(c10::get_default_dtype_as_scalartype()))
                            .device(c10::kMeta));
  return new_device_tensor(meta, index);
}

at::Tensor empty(c10::SymIntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> layout, std::optional<at::Device> device,
                 std::optional<bool> pin, std::optional<at::MemoryFormat> format) {
  auto ints = C10_AS_INTARRAYREF_SLOW(sizes);
  std::vector<int64_t> strides(ints.size(), 1);
  for (int i = int(ints.size()) - 2; i >= 0; --i)
    strides[i] = strides[i + 1] * std::max<int64_t>(ints[i + 1], 1);
  if (format == at::MemoryFormat::ChannelsLast) strides = c10::get_channels_last_strides_2d(ints);
  return empty_strided(sizes, c10::fromIntArrayRefSlow(strides), dtype, layout, device, pin);
}

std::atomic<bool> copies_fail{false};

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  TORCH_CHECK(!copies_fail, "no copies");
  const bool up = on_device(self), from_device = on_device(source);
  const int device = (up ? self : source).device().index();
  check(device);
  const auto is_pinned = [](const at::Tensor& t) { return pinned_memory().has(t.data_ptr()); };
  const at::Tensor to = queued_twin(self);
  at::Tensor from = queued_twin(source);
  // (What is not pinned is read before the call returns.)
  const bool later = non_blocking && (up || is_pinned(to));
  const BelowEverything below;
  if (own_capture && (!later || !is_pinned(up ? from : to)) && !(up && from_device))
    own_capture->refuse("a copy of memory that is not pinned");
  if (up && !from_device && !is_pinned(from)) from = from.clone();
  launch(stream_of(device), [to, from] {
    const BelowEverything below;
    to.copy_(from);
  });
  if (!later && !(up && from_device)) {
    stream_of(device).wait();
    check(device);
  }
  return self;
}

const at::Tensor& resize_(const at::Tensor& self, c10::SymIntArrayRef sizes,
                          std::optional<at::MemoryFormat>) {
  auto ints = C10_AS_INTARRAYREF_SLOW(sizes);
  int64_t numel = 1;
  for (int64_t n : ints) numel *= n;
  resize_storage(self, (self.storage_offset() + numel) * self.element_size());
  self.unsafeGetTensorImpl()->set_sizes_contiguous(ints);
  return self;
}

/// An op of CUDA that the CPU has not: of one trailing dim.
std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& dy, const at::Tensor& x,
                                                     at::IntArrayRef /*shape*/,
                                                     const at::Tensor& rstd,
                                                     const std::optional<at::Tensor>& weight,
                                                     std::array<bool, 2> wanted) {
  const at::Tensor normal = at::mul(x, rstd);
  const at::Tensor g = weight ? at::mul(dy, *weight) : dy;
  at::Tensor dx, dweight;
  if (wanted[0]) {
    const at::Tensor mean = at::mean(at::mul(g, normal), {-1}, /*keepdim=*/true);
    dx = at::mul(rstd, at::sub(g, at::mul(normal, mean)));
  }
  if (wanted[1]) dweight = at::mul(dy, normal).flatten(0, -2).sum(0);
  return {dx, dweight};
}

}  // namespace
