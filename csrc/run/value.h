// csrc/run/value.h: one recorded tensor: a geometry over a storage var, and the real tensor once
// run.
//
// A Value never changes what it stands for. In-place ops make a new version of the var; ops that
// change a tensor's metadata give the lazy tensor another Value. Values are shared by lazy tensors
// and nodes; they hold no lazy tensor and no plain tensor that Python knows, so that dropping one
// on an engine thread takes no GIL.
#pragma once

#include <ATen/core/Tensor.h>

#include "csrc/engine/block_pool.h"
#include "csrc/run/geometry.h"
#include "csrc/run/storage_var.h"

namespace lazyeng::run {

class Value final : public RefCounted, public engine::Pooled<Value> {
 public:
  Value(StorageVarRef var, GeometryRef geometry)
      : var_(std::move(var)), geometry_(std::move(geometry)) {}
  ~Value() override;

  StorageVar& var() const { return *var_; }
  const StorageVarRef& var_ref() const { return var_; }
  const Geometry& geometry() const { return *geometry_; }
  const GeometryRef& geometry_ref() const { return geometry_; }

  /// The real tensor over the engine face. The caller holds a grant on the var, or has waited for
  /// it. Any thread; the tensor is made once.
  at::Tensor real();
  /// Installs what the op returned. By the op that makes this value, while it holds the write.
  void set_real(const at::Tensor& tensor);
  /// Lets go of the real tensor. By who alone uses the value.
  void drop_real();
  /// A fresh tensor object over the engine face, for ops that change the object itself.
  at::Tensor fresh_real() const;
  /// A fresh plain tensor over the user face, for handing out to Python.
  at::Tensor plain() const;

 private:
  const StorageVarRef var_;
  const GeometryRef geometry_;
  std::atomic<c10::TensorImpl*> real_{nullptr};  // owned
};
using ValueRef = Ref<Value>;

/// Memory from torch's allocator for the device. On an engine thread.
c10::Storage new_storage(uint64_t nbytes, c10::Device device);

/// A plain tensor over `storage` with this geometry.
at::Tensor tensor_over(const c10::Storage& storage, const Geometry& geometry);

}  // namespace lazyeng::run
