// csrc/fuse/binding.cpp: addresses of tensors, values of numbers.
#include "csrc/fuse/binding.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/TypeCast.h>

#include <cmath>
#include <cstring>

#include "csrc/run/buffers.h"

namespace lazyeng::fuse {
namespace {

char* memory_of(const c10::Storage& storage) {
  return static_cast<char*>(storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get());
}

c10::Storage new_storage(uint64_t nbytes) {
  return c10::Storage(c10::Storage::use_byte_size_t(), nbytes, run::allocate_buffer(nbytes),
                      c10::GetCPUAllocator(), /*resizable=*/true);
}

c10::Scalar number_at(const char* memory, c10::ScalarType dtype) {
  const auto read = [memory]<class T>(T value) {
    std::memcpy(&value, memory, sizeof value);
    return value;
  };
  switch (dtype) {
    case c10::kBool:
      return read(false);
    case c10::kByte:
      return read(uint8_t{});
    case c10::kChar:
      return read(int8_t{});
    case c10::kShort:
      return read(int16_t{});
    case c10::kInt:
      return read(int32_t{});
    case c10::kLong:
      return read(int64_t{});
    case c10::kFloat:
      return read(float{});
    case c10::kHalf:
      return static_cast<float>(read(c10::Half()));
    case c10::kBFloat16:
      return static_cast<float>(read(c10::BFloat16()));
    default:
      return read(double{});
  }
}

/// As torch casts a tensor of one element: wraps around.
template <class T>
T cast_number(const c10::Scalar& number) {
  if (number.isFloatingPoint()) return c10::convert<T>(number.toDouble());
  if (number.isBoolean()) return c10::convert<T>(number.toBool());
  return c10::convert<T>(number.toLong());
}

template <class T>
void fill_splat(char* memory, T value) {
  for (int64_t i = 0; i < kLanes; ++i)
    std::memcpy(memory + i * static_cast<int64_t>(sizeof value), &value, sizeof value);
}

/// A number converted to the dtype `as`, as it stands in a register. An argument is converted as
/// its op does it: what does not fit raises.
template <class T>
void convert_into(char* memory, const c10::Scalar& number, bool argument, bool negate) {
  T value = argument ? number.to<T>() : cast_number<T>(number);
  if (negate) value = static_cast<T>(-value);
  if constexpr (std::is_same_v<T, c10::Half> || std::is_same_v<T, c10::BFloat16>)
    fill_splat(memory, static_cast<float>(value));
  else
    fill_splat(memory, value);
}

}  // namespace

BoundPlan::BoundPlan(const Group& group, const Plan& plan) : group_(group), plan_(plan) {
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
    using Kind = ParameterSource::Kind;
    c10::Scalar number = source.constant;
    const run::Node& node = *group_.members[source.member].node;
    if (source.kind == Kind::argument) {
      number = node.args[source.index].toScalar();
    } else if (source.kind == Kind::number) {
      const at::Tensor& raw = node.tensors[source.index].raw;
      number = number_at(static_cast<const char*>(raw.const_data_ptr()), raw.scalar_type());
    } else if (source.kind == Kind::value) {
      const run::Value& value = *group_.values[source.index].value;
      const run::Geometry& look = value.geometry();
      const c10::Storage& storage = value.var().engine_face();
      valid_ = storage && storage.nbytes() >= look.extent_bytes();
      if (!valid_) return;
      number = number_at(
          memory_of(storage) + look.offset() * static_cast<int64_t>(c10::elementSize(look.dtype())),
          look.dtype());
    }
    write_splat(p, number, source);
  }
}

void BoundPlan::write_splat(size_t index, const c10::Scalar& number,
                            const ParameterSource& source) {
  char* const memory = bindings_.splats + index * kSplatBytes;
  const bool argument = source.kind == ParameterSource::Kind::argument;
  if (source.no_nan && number.isFloatingPoint() && std::isnan(number.toDouble())) valid_ = false;
  const auto convert = [&]<class T>(T) {
    convert_into<T>(memory, number, argument, source.negate);
  };
  switch (source.as) {
    case c10::kBool:
      return fill_splat(memory, static_cast<uint8_t>(cast_number<bool>(number)));
    case c10::kByte:
      return convert(uint8_t{});
    case c10::kChar:
      return convert(int8_t{});
    case c10::kShort:
      return convert(int16_t{});
    case c10::kInt:
      return convert(int32_t{});
    case c10::kLong:
      return convert(int64_t{});
    case c10::kFloat:
      return convert(float{});
    case c10::kHalf:
      return convert(c10::Half());
    case c10::kBFloat16:
      return convert(c10::BFloat16());
    default:
      return convert(double{});
  }
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
