// csrc/fuse/device/device_arguments.cpp: addresses, and errors of the driver.
#include "csrc/fuse/device/device_arguments.h"

#include <c10/util/Exception.h>

namespace lazyeng::fuse {

char* address_in(const c10::Storage& storage, const run::Geometry& look) {
  return memory_of(storage) + look.offset() * static_cast<int64_t>(c10::elementSize(look.dtype()));
}

char* address_of(const run::Value& value) {
  const c10::Storage& storage = value.var().engine_face();
  if (!storage || storage.nbytes() < value.geometry().extent_bytes()) return nullptr;
  return address_in(storage, value.geometry());
}

std::exception_ptr as_torch_tells(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const CudaError& refused) {
    return std::make_exception_ptr(
        c10::AcceleratorError({__func__, __FILE__, __LINE__}, refused.code(),
                              std::string("CUDA error: ") + refused.what()));
  } catch (...) {
    return error;
  }
}

}  // namespace lazyeng::fuse
