// csrc/fuse/binding.cpp: addresses of tensors, values of numbers.
#include "csrc/fuse/binding.h"

#include <c10/core/CPUAllocator.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "csrc/fuse/numbers.h"
#include "csrc/run/memory/buffers.h"

namespace lazyeng::fuse {
namespace {

char* memory_of(const c10::Storage& storage) {
  return static_cast<char*>(storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get());
}

c10::Storage new_storage(uint64_t nbytes) {
  return c10::Storage(c10::Storage::use_byte_size_t(), nbytes, run::allocate_buffer(nbytes),
                      c10::GetCPUAllocator(), /*resizable=*/true);
}

/// With the sign of the NaN and the upper half of its bits: chains count on it that the lower one
/// is empty.
float short_nan(float nan) {
  constexpr uint32_t kUpper = 0xffff0000, kQuiet = 0x00400000;
  return std::bit_cast<float>((std::bit_cast<uint32_t>(nan) & kUpper) | kQuiet);
}

template <class T>
void fill_splat(char* memory, T value) {
  for (int64_t i = 0; i < kLanes; ++i)
    std::memcpy(memory + i * static_cast<int64_t>(sizeof value), &value, sizeof value);
}

}  // namespace

BoundPlan::BoundPlan(const Group& group, const GroupPlan& plan) : group_(group), plan_(plan) {
  bind_tensors();
  if (valid_) bind_parameters();
}

void BoundPlan::bind_tensors() {
  for (const TensorSource& source : plan_.tensors) {
    const run::Value& value = *group_.values[source.value].value;
    const run::Geometry& look = value.geometry();
    c10::Storage storage;
    if (source.fresh) {
      storage = new_storage(look.extent_bytes());
      made_.push_back(storage);
    } else {
      storage = value.var().engine_face();
    }
    if (!storage || storage.nbytes() < look.extent_bytes()) {
      valid_ = false;
      return;
    }
    bindings_.tensors.push_back(
        memory_of(storage) + look.offset() * static_cast<int64_t>(c10::elementSize(look.dtype())));
  }
}

void BoundPlan::bind_parameters() {
  splat_memory_.resize(plan_.parameters.size() * kSplatBytes + 64);
  const auto address = reinterpret_cast<uintptr_t>(splat_memory_.data());
  bindings_.splats = splat_memory_.data() + (64 - address % 64) % 64;
  for (size_t p = 0; p < plan_.parameters.size() && valid_; ++p) {
    const ParameterSource& source = plan_.parameters[p];
    c10::Scalar number;
    if (source.kind == ParameterSource::Kind::value) {
      const run::Value& value = *group_.values[source.index].value;
      const run::Geometry& look = value.geometry();
      const c10::Storage& storage = value.var().engine_face();
      valid_ = storage && storage.nbytes() >= look.extent_bytes();
      if (!valid_) return;
      number = number_at(
          memory_of(storage) + look.offset() * static_cast<int64_t>(c10::elementSize(look.dtype())),
          look.dtype());
    } else {
      number = number_of(group_, source);
    }
    write_splat(p, number, source);
  }
}

void BoundPlan::write_splat(size_t index, const c10::Scalar& number,
                            const ParameterSource& source) {
  char* const memory = bindings_.splats + index * kSplatBytes;
  if (is_special(number, source)) valid_ = false;
  with_converted(number, source, [memory](auto value) {
    if constexpr (std::is_same_v<decltype(value), float>)
      if (std::isnan(value)) value = short_nan(value);
    fill_splat(memory, value);
  });
}

void BoundPlan::install() {
  size_t next = 0;
  for (const TensorSource& source : plan_.tensors) {
    if (!source.fresh) continue;
    run::StorageVar& var = group_.values[source.value].value->var();
    var.set_engine_face(std::move(made_[next++]));
  }
}

}  // namespace lazyeng::fuse
