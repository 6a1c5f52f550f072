// csrc/record/lazy_tensor.cpp: the tensor that users hold.
#include "csrc/record/lazy_tensor.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/resize.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/python_variable.h>

#include <typeinfo>

#include "csrc/record/process/gate.h"
#include "csrc/record/recorder.h"
#include "csrc/record/special/reducers.h"
#include "csrc/run/plain/plain_storage.h"
#include "csrc/run/python_ref.h"

namespace lazyeng::record {
namespace {

PyTypeObject* lazy_class = nullptr;  // owned; set at import, before any lazy tensor exists

c10::DispatchKeySet lazy_keys() {
  return c10::DispatchKeySet({c10::DispatchKey::PrivateUse1, c10::DispatchKey::ADInplaceOrView,
                              c10::DispatchKey::AutogradPrivateUse1});
}

/// As torch's own tensors: a dispatch mode is asked for the detached tensor. Null: there is none.
c10::intrusive_ptr<c10::TensorImpl> detached_by_mode(const c10::TensorImpl& impl) {
  using c10::impl::TorchDispatchModeTLS;
  const int64_t modes = TorchDispatchModeTLS::stack_len();
  if (modes == 0 || c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::Python))
    return nullptr;
  return TorchDispatchModeTLS::get_stack_at(modes - 1)->pyinterpreter()->detach(&impl);
}

}  // namespace

LazyImpl::LazyImpl(run::ValueRef value)
    : TensorImpl(lazy_keys(), c10::scalarTypeToTypeMeta(value->geometry().dtype()),
                 value->geometry().device()),
      value_(std::move(value)) {
  set_storage_access_should_throw();
  // The base class chose the autocast key of the backend bit; autocast goes by the true device.
  const bool cuda = value_->geometry().device().type() == c10::kCUDA;
  key_set_ = key_set_.remove(c10::DispatchKey::AutocastPrivateUse1)
                 .add(cuda ? c10::DispatchKey::AutocastCUDA : c10::DispatchKey::AutocastCPU);
  mirror();
}

void LazyImpl::leave_watch() {
  if (!watched_by_) return;
  std::lock_guard lock(watched_by_->mutex);
  watched_by_->result = nullptr;
}

void ResultWatch::watch(LazyImpl& result) {
  result.leave_watch();  // (of another thread, whose op it was the result of before)
  watched_ = std::make_shared<WatchedResult>();
  watched_->result = &result;
  result.watched_by_ = watched_;
}

void LazyImpl::set_inference(bool inference, bool counted) {
  if (is_inference() == inference) return;
  constexpr c10::DispatchKeySet keys(
      {c10::DispatchKey::ADInplaceOrView, c10::DispatchKey::AutogradPrivateUse1});
  key_set_ = inference ? key_set_ - keys : key_set_ | keys;
  if (!inference)
    set_version_counter(c10::VariableVersion(0));
  else if (!counted)
    set_version_counter(c10::VariableVersion(c10::VariableVersion::DISABLED));
}

void LazyImpl::mirror() {
  const run::Geometry& g = value_->geometry();
  set_sizes_and_strides(g.sizes(), g.strides(), g.offset());
  data_type_ = c10::scalarTypeToTypeMeta(g.dtype());
  device_opt_ = g.device();
  const bool conj = key_set_.has(c10::DispatchKey::Conjugate);
  if (conj != g.data().conj) _set_conj(g.data().conj);
  const bool neg = key_set_.has(c10::DispatchKey::Negative);
  if (neg != g.data().neg) _set_neg(g.data().neg);
}

void LazyImpl::set_value(run::ValueRef value) {
  value_ = std::move(value);
  mirror();
}

const c10::Storage& LazyImpl::storage() const {
  const Gate::Inside inside;  // C++ that asks may have let go of the GIL
  current_recorder()->wait_and_check(*value_);
  complete_buckets();
  c10::Storage now = run::plain_storages().user_face(value_->var());
  current_recorder()->note_handed_out(value_->var());
  const std::lock_guard lock(asked_mutex_);
  if (asked_storage_.unsafeGetStorageImpl() != now.unsafeGetStorageImpl())
    asked_storage_ = std::move(now);
  return asked_storage_;
}

void LazyImpl::undo_resize() {
  storage_ = c10::Storage();
  mirror();
}

c10::intrusive_ptr<c10::TensorImpl> LazyImpl::shallow_copy_and_detach(
    const c10::VariableVersion& version, bool allow_change) const {
  if (auto detached = detached_by_mode(*this)) {
    if (!detached->is_inference()) detached->set_version_counter(version);
    detached->set_allow_tensor_metadata_change(allow_change);
    return detached;
  }
  auto copy = c10::make_intrusive<LazyImpl>(value_);
  copy_tensor_metadata(this, copy.get(), version, allow_change);
  // (Saved tensors and `.data` come through here: without a Python object of our own they would
  // surface as plain torch.Tensor.)
  run::Gil gil;
  make_python_object(at::Tensor(
      c10::intrusive_ptr<TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(copy.get())));
  return copy;
}

c10::intrusive_ptr<c10::TensorImpl> LazyImpl::shallow_copy_and_detach(
    c10::VariableVersion&& version, bool allow_change) const {
  const c10::VariableVersion kept = std::move(version);
  return shallow_copy_and_detach(kept, allow_change);
}

void LazyImpl::shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& other) {
  TORCH_CHECK(
      typeid(*other) == typeid(LazyImpl),
      "lazyeng: expected a LazyTensor to take the data of, got a plain tensor; wrap() it first");
  auto* lazy = static_cast<LazyImpl*>(other.get());
  copy_tensor_metadata(lazy, this, version_counter(), allow_tensor_metadata_change());
  set_value(lazy->value_);
}

LazyImpl* lazy_impl(const at::Tensor& tensor) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (!impl->key_set().has_backend(c10::BackendComponent::PrivateUse1Bit)) return nullptr;
  // (functorch's wrappers carry the backend bits of what they wrap.)
  return typeid(*impl) == typeid(LazyImpl) ? static_cast<LazyImpl*>(impl) : nullptr;
}

void follow_resize(const at::Tensor& tensor) {
  const std::vector<int64_t> sizes = tensor.sizes().vec();
  lazy_impl(tensor)->undo_resize();
  const at::AutoDispatchBelowADInplaceOrView below;
  tensor.resize_(sizes);
}

at::Tensor make_lazy(run::ValueRef value) {
  return at::detail::make_tensor<LazyImpl>(std::move(value));
}

void make_python_object(const at::Tensor& tensor) {
  Py_XDECREF(THPVariable_Wrap(tensor, lazy_class));
}

PyObject* python_object(at::Tensor tensor) { return THPVariable_Wrap(tensor, lazy_class); }

void set_python_class(PyTypeObject* cls) {
  Py_INCREF(cls);
  lazy_class = cls;
}

PyTypeObject* python_class() { return lazy_class; }

}  // namespace lazyeng::record
