// csrc/record/lazy_tensor.h: the tensor that users hold: a TensorImpl without storage of its own.
//
// It carries the PrivateUse1 backend bit, so that the dispatcher chooses our kernels over those of
// the real device, and reports the real device. Its sizes and strides mirror its value's geometry.
#pragma once

#include <ATen/core/Tensor.h>
#include <Python.h>

#include <memory>
#include <mutex>
#include <utility>

#include "csrc/engine/spin_lock.h"
#include "csrc/run/value.h"

namespace lazyeng::record {

class LazyImpl;
class ResultWatch;

struct WatchedResult {
  engine::SpinLock mutex;
  LazyImpl* result;  ///< null once it dies
};

class LazyImpl final : public c10::TensorImpl {
 public:
  explicit LazyImpl(run::ValueRef value);
  ~LazyImpl() override { leave_watch(); }
  void release_resources() override {
    leave_watch();
    TensorImpl::release_resources();
  }

  const run::ValueRef& value() const { return value_; }
  /// A view of a normal tensor taken in inference mode is a normal tensor, and one of an inference
  /// tensor taken outside of it is an inference tensor, with a version only if it is `counted`.
  void set_inference(bool inference, bool counted);
  /// For ops that change the tensor's metadata, and for `x.data = y`.
  void set_value(run::ValueRef value);
  /// True if C++ code changed the sizes without asking the dispatcher: composite ops resize their
  /// out= argument so when it says that it is on the CPU.
  bool resized_outside() const { return sizes_default() != value_->geometry().sizes(); }
  /// Takes the sizes of the value again, and lets go of memory that such code gave the tensor.
  void undo_resize();

  /// For C++ code that asks whether two tensors share memory (DistributedDataParallel's reducer):
  /// waits, and raises what failed; the storage is the one that plain tensors share.
  const c10::Storage& storage() const override;

  const char* tensorimpl_type_name() const override { return "LazyTensor"; }
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version,
                                                         bool allow_change) const override;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version,
                                                         bool allow_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& other) override;

 private:
  friend class ResultWatch;

  void mirror();
  void leave_watch();

  // (As with torch's own metadata, who changes a tensor while others use it orders that himself:
  // the GIL does for Python, and ops of autograd's threads hand tensors on.)
  run::ValueRef value_;
  std::shared_ptr<WatchedResult> watched_by_;
  mutable std::mutex asked_mutex_;      // guards the exchange of:
  mutable c10::Storage asked_storage_;  // kept: storage() returns a reference
};

/// One lazy tensor at a time, looked at as long as it lives. (A weak reference would be seen by
/// torch.utils.swap_tensors, which refuses such tensors.) For one thread; the tensor may die on
/// any.
class ResultWatch {
 public:
  void watch(LazyImpl& result);
  /// Calls f(result) and lets go of it; false if it has died.
  template <class F>
  bool look(F&& f) {
    if (!watched_) return false;
    const std::shared_ptr<WatchedResult> watched = std::exchange(watched_, nullptr);
    std::lock_guard lock(watched->mutex);
    if (!watched->result) return false;
    f(*watched->result);
    return true;
  }

 private:
  std::shared_ptr<WatchedResult> watched_;
};

/// Null if the tensor is not lazy (or undefined).
LazyImpl* lazy_impl(const at::Tensor& tensor);

/// Records the resize that such a tensor missed.
void follow_resize(const at::Tensor& tensor);

/// A lazy tensor without a Python object yet.
at::Tensor make_lazy(run::ValueRef value);

/// Makes the tensor's Python object, of type LazyTensor, if it has none. GIL.
void make_python_object(const at::Tensor& tensor);
/// The same as a new reference. GIL.
PyObject* python_object(at::Tensor tensor);

/// The Python class LazyTensor; set once, at import.
void set_python_class(PyTypeObject* cls);
PyTypeObject* python_class();

}  // namespace lazyeng::record
