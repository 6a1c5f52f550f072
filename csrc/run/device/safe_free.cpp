// csrc/run/device/safe_free.cpp: a deleter around the allocator's.
#include "csrc/run/device/safe_free.h"

#include <atomic>
#include <exception>

namespace lazyeng::run {
namespace {

std::atomic<c10::DeleterFnPtr> torchs_deleter{nullptr};

void free_unless_lost(void* memory) {
  try {
    torchs_deleter.load(std::memory_order_relaxed)(memory);
  } catch (const std::exception&) {
    // It stays: nothing can be done with the device any more.
  }
}

/// Of all memory that is the allocator's own. (Other memory, of another process for one, was never
/// told of streams.) Null: it has none, or devices of another type came first.
c10::DeleterFnPtr known_deleter(c10::DeviceType device) {
  const c10::Allocator* const allocator = c10::GetAllocator(device);
  const c10::DeleterFnPtr deleter = allocator ? allocator->raw_deleter() : nullptr;
  c10::DeleterFnPtr known = nullptr;
  const bool same = torchs_deleter.compare_exchange_strong(known, deleter) || known == deleter;
  return same ? deleter : nullptr;
}

}  // namespace

void free_safely(const c10::Storage& memory) {
  if (!memory || memory.device().is_cpu() || memory.use_count() != 1) return;
  if (const c10::DeleterFnPtr deleter = known_deleter(memory.device_type()))
    static_cast<void>(
        memory.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().compare_exchange_deleter(
            deleter, &free_unless_lost));
}

}  // namespace lazyeng::run
