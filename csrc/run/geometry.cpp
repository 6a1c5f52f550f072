// csrc/run/geometry.cpp: interning of geometries.
#include "csrc/run/geometry.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "csrc/run/hash_words.h"

namespace lazyeng::run {
namespace {

uint64_t hash_of(const GeometryData& g) {
  uint64_t hash = mix_word(g.sizes.size(), static_cast<uint64_t>(g.offset));
  for (int64_t size : g.sizes) hash = mix_word(hash, static_cast<uint64_t>(size));
  for (int64_t stride : g.strides) hash = mix_word(hash, static_cast<uint64_t>(stride));
  const uint64_t bits = static_cast<uint64_t>(g.dtype) << 24 |
                        static_cast<uint64_t>(static_cast<uint8_t>(g.device.type())) << 16 |
                        static_cast<uint64_t>(static_cast<uint8_t>(g.device.index())) << 8 |
                        g.conj << 2 | g.neg << 1 | static_cast<uint64_t>(g.wrapped_number);
  return mix_word(hash, bits);
}

/// Whether the strides, from the smallest on, are those of a contiguous tensor with its dims in
/// that order.
bool crosses_evenly(const GeometryData& g) {
  Dims dims;
  for (size_t d = 0; d < g.sizes.size(); ++d)
    if (g.sizes[d] != 1) dims.push_back(static_cast<int64_t>(d));
  std::sort(dims.begin(), dims.end(),
            [&](int64_t a, int64_t b) { return g.strides[a] < g.strides[b]; });
  int64_t expected = 1;
  for (int64_t d : dims) {
    if (g.strides[d] != expected) return false;
    expected *= g.sizes[d];
  }
  return true;
}

/// Strong references, swept when the table has doubled since the last sweep: what only the table
/// still knows goes.
class Table {
 public:
  GeometryRef intern(const GeometryData& data) {
    std::lock_guard lock(mutex_);
    return intern_locked(data);
  }

 private:
  GeometryRef intern_locked(const GeometryData& data) {
    const uint64_t hash = hash_of(data);
    if (const GeometryRef* known = find_locked(data, hash)) return *known;
    if (entries_.size() >= sweep_at_) sweep();
    GeometryRef at_origin;
    if (data.offset != 0) {
      GeometryData moved = data;
      moved.offset = 0;
      at_origin = intern_locked(moved);
    }
    return entries_.emplace(hash, make_ref<Geometry>(data, std::move(at_origin)))->second;
  }

  const GeometryRef* find_locked(const GeometryData& data, uint64_t hash) const {
    auto [first, last] = entries_.equal_range(hash);
    for (; first != last; ++first)
      if (first->second->data() == data) return &first->second;
    return nullptr;
  }

  void sweep() {
    std::erase_if(entries_, [](const auto& entry) { return entry.second->use_count() == 1; });
    sweep_at_ = std::max<size_t>(1024, 2 * entries_.size());
  }

  std::mutex mutex_;
  std::unordered_multimap<uint64_t, GeometryRef> entries_;
  size_t sweep_at_ = 1024;
};

Table& table() {
  static Table* const instance = new Table;  // never destroyed: engine threads may outlive statics
  return *instance;
}

}  // namespace

Geometry::Geometry(GeometryData data, GeometryRef at_origin)
    : data_(std::move(data)), at_origin_(std::move(at_origin)) {
  int64_t last = 0;
  for (size_t i = 0; i < data_.sizes.size(); ++i) {
    numel_ *= data_.sizes[i];
    last += (data_.sizes[i] - 1) * data_.strides[i];
  }
  const uint64_t item = c10::elementSize(data_.dtype);
  if (numel_ > 0) extent_bytes_ = (data_.offset + last + 1) * item;
  dense_ = numel_ > 0 && last + 1 == numel_ && crosses_evenly(data_);
}

GeometryRef intern(const GeometryData& data) { return table().intern(data); }

GeometryRef with_offset(const GeometryRef& geometry, int64_t offset) {
  if (geometry->offset() == offset) return geometry;
  GeometryData data = geometry->data();
  data.offset = offset;
  return intern(data);
}

bool may_overlap(const Geometry& a, const Geometry& b) {
  const auto begin = [](const Geometry& g) { return g.extent_bytes() - g.span_bytes(); };
  return begin(a) < b.extent_bytes() && begin(b) < a.extent_bytes();
}

GeometryRef geometry_of(const at::Tensor& tensor) {
  GeometryData data;
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  data.sizes.assign(impl->sizes().begin(), impl->sizes().end());
  data.strides.assign(impl->strides().begin(), impl->strides().end());
  data.offset = impl->storage_offset();
  data.dtype = tensor.scalar_type();
  data.device = impl->device();
  data.conj = tensor.is_conj();
  data.neg = tensor.is_neg();
  data.wrapped_number = impl->is_wrapped_number();
  return intern(data);
}

bool matches(const Geometry& g, const at::Tensor& tensor) {
  return tensor.sizes() == g.sizes() && tensor.strides() == g.strides() &&
         tensor.storage_offset() == g.offset() && tensor.scalar_type() == g.dtype() &&
         tensor.is_conj() == g.data().conj && tensor.is_neg() == g.data().neg &&
         tensor.device() == g.device();
}

bool same_layout(const Geometry& g, const at::Tensor& tensor) {
  if (tensor.sizes() != g.sizes() || tensor.storage_offset() != g.offset() ||
      tensor.scalar_type() != g.dtype() || tensor.is_conj() != g.data().conj ||
      tensor.is_neg() != g.data().neg || tensor.device() != g.device())
    return false;
  if (g.numel() == 0) return true;
  for (int64_t i = 0; i < tensor.dim(); ++i)
    if (g.sizes()[i] > 1 && tensor.stride(i) != g.strides()[i]) return false;
  return true;
}

}  // namespace lazyeng::run
