// csrc/run/geometry.h: what a tensor looks like over its storage: sizes, strides, offset, dtype,
// bits.
//
// Geometries are interned: two tensors that look the same share one object, so that comparing and
// hashing the arguments of an op is comparing and hashing pointers. Immutable; any thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "csrc/engine/ref.h"

namespace lazyeng::run {

using Dims = c10::SmallVector<int64_t, 5>;

struct GeometryData {
  Dims sizes;
  Dims strides;
  int64_t offset = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
  c10::Device device = c10::kCPU;
  bool conj = false;
  bool neg = false;
  bool wrapped_number = false;  ///< a Python scalar: takes part in type promotion with less weight

  bool operator==(const GeometryData&) const = default;
};

class Geometry;
using GeometryRef = Ref<const Geometry>;

class Geometry final : public RefCounted {
 public:
  /// `at_origin`: the same without an offset; null if `data` has none.
  explicit Geometry(GeometryData data, GeometryRef at_origin = nullptr);

  const GeometryData& data() const { return data_; }
  c10::IntArrayRef sizes() const { return data_.sizes; }
  c10::IntArrayRef strides() const { return data_.strides; }
  int64_t offset() const { return data_.offset; }
  c10::ScalarType dtype() const { return data_.dtype; }
  c10::Device device() const { return data_.device; }
  int64_t numel() const { return numel_; }
  /// Bytes of storage from its start to the last element that this tensor touches.
  uint64_t extent_bytes() const { return extent_bytes_; }
  /// Bytes from the first element that this tensor touches to the last.
  uint64_t span_bytes() const { return at_origin().extent_bytes_; }
  /// The interned Geometry that differs in its offset only, which is 0.
  const Geometry& at_origin() const { return at_origin_ ? *at_origin_ : *this; }
  /// The elements lie side by side, in some order of the dims, none of them twice.
  bool dense() const { return dense_; }
  /// Every byte of a storage of `nbytes` belongs to an element of this tensor.
  bool covers(uint64_t nbytes) const {
    return dense_ && data_.offset == 0 && extent_bytes_ >= nbytes;
  }

 private:
  const GeometryData data_;
  int64_t numel_ = 1;
  uint64_t extent_bytes_ = 0;
  bool dense_ = false;
  const GeometryRef at_origin_;
};

/// The one Geometry equal to `data`.
GeometryRef intern(const GeometryData& data);
/// The one that differs from `geometry` in its offset only.
GeometryRef with_offset(const GeometryRef& geometry, int64_t offset);
/// Some byte belongs to elements of both, or may: what lies between elements counts. Of tensors
/// over one storage.
bool may_overlap(const Geometry& a, const Geometry& b);
/// The one Geometry of a strided tensor.
GeometryRef geometry_of(const at::Tensor& tensor);
/// Whether `tensor` has exactly this geometry.
bool matches(const Geometry& geometry, const at::Tensor& tensor);
/// As matches(), but blind to strides that no element can show (dims of size 1, no elements).
bool same_layout(const Geometry& geometry, const at::Tensor& tensor);

}  // namespace lazyeng::run
