// csrc/run/value.cpp: making real tensors for values.
#include "csrc/run/value.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty.h>

#include "csrc/run/plain/plain_storage.h"

namespace lazyeng::run {
namespace {

using ImplPtr = c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

c10::DispatchKeySet keys_for(c10::Device device) {
  const bool cuda = device.type() == c10::kCUDA;
  return c10::DispatchKeySet(cuda ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU)
      .add(c10::DispatchKey::ADInplaceOrView);
}

}  // namespace

c10::Storage new_storage(uint64_t nbytes, c10::Device device) {
  return at::empty({static_cast<int64_t>(nbytes)},
                   at::TensorOptions().dtype(c10::kByte).device(device))
      .storage();
}

at::Tensor tensor_over(const c10::Storage& storage, const Geometry& g) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), keys_for(g.device()), c10::scalarTypeToTypeMeta(g.dtype()));
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(g.sizes(), g.strides(), g.offset());
  if (g.data().conj) impl->_set_conj(true);
  if (g.data().neg) impl->_set_neg(true);
  if (g.data().wrapped_number) impl->set_wrapped_number(true);
  return tensor;
}

Value::~Value() {
  if (c10::TensorImpl* impl = real_.load(std::memory_order_acquire)) ImplPtr::reclaim(impl);
}

at::Tensor Value::real() {
  if (c10::TensorImpl* impl = real_.load(std::memory_order_acquire))
    return at::Tensor(ImplPtr::reclaim_copy(impl));
  // Two ops that read the same value may come here together: the first one to install wins.
  at::Tensor made = fresh_real();
  c10::TensorImpl* expected = nullptr;
  if (real_.compare_exchange_strong(expected, made.unsafeGetTensorImpl(),
                                    std::memory_order_acq_rel)) {
    ImplPtr owned = made.getIntrusivePtr();
    owned.release();  // real_ owns this reference now
    return made;
  }
  return at::Tensor(ImplPtr::reclaim_copy(expected));
}

void Value::set_real(const at::Tensor& tensor) {
  ImplPtr keep = tensor.getIntrusivePtr();
  c10::TensorImpl* old = real_.exchange(keep.release(), std::memory_order_acq_rel);
  if (old) ImplPtr::reclaim(old);
}

void Value::drop_real() {
  if (c10::TensorImpl* old = real_.exchange(nullptr, std::memory_order_acq_rel))
    ImplPtr::reclaim(old);
}

at::Tensor Value::fresh_real() const {
  // An op that overwrites what a failed op should have made: there is no memory yet.
  if (!var_->engine_face()) var_->set_engine_face(new_storage(var_->nbytes(), geometry_->device()));
  return tensor_over(var_->engine_face(), *geometry_);
}

at::Tensor Value::plain() const {
  at::Tensor tensor = tensor_over(plain_storages().user_face(*var_), *geometry_);
  var_->note_plain_tensor(tensor);
  return tensor;
}

}  // namespace lazyeng::run
