// csrc/fuse/device/device_arguments.h: what kernels of a device are called with, for groups and for
// calls.
#pragma once

#include <c10/core/Storage.h>

#include <exception>

#include "csrc/fuse/device/device_kernels.h"
#include "csrc/run/value.h"

namespace lazyeng::fuse {

inline constexpr uint64_t kAlignment = 16;  // bytes

inline char* memory_of(const c10::Storage& storage) {
  return static_cast<char*>(storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get());
}

char* address_in(const c10::Storage& storage, const run::Geometry& look);
/// The address of a tensor that exists; null if it is not where it was recorded to be.
char* address_of(const run::Value& value);
inline bool is_aligned(const char* address) {
  return reinterpret_cast<uintptr_t>(address) % kAlignment == 0;
}

/// In the type that the kernel takes, which is no narrower.
template <class T>
void add_number(T value, Type type, LaunchArguments& arguments) {
  switch (type) {
    case Type::i64:
      return arguments.add(static_cast<int64_t>(value));
    case Type::f32:
      return arguments.add(static_cast<float>(value));
    case Type::f64:
      return arguments.add(static_cast<double>(value));
    default:
      return arguments.add(static_cast<int32_t>(value));
  }
}

/// As torch tells what CUDA has refused, so that the loss of a device is seen as such.
std::exception_ptr as_torch_tells(const std::exception_ptr& error);

}  // namespace lazyeng::fuse
