// csrc/run/plain/plain_values.cpp: which value still stands for a plain tensor, and which may go.
#include "csrc/run/plain/plain_values.h"

#include <c10/core/impl/COW.h>

#include <mutex>
#include <utility>
#include <vector>

#include "csrc/run/memory/cpu_allocator.h"
#include "csrc/run/plain/plain_storage.h"

namespace lazyeng::run {
namespace {

/// A larger tensor is worth more than what it costs to look up.
constexpr size_t kMostBytes = 1 << 18;

/// Smaller ones are bounded by the number of ops.
constexpr uint64_t kLeastCounted = uint64_t{32} << 10;

/// But not again and again.
constexpr unsigned kOften = 4;

/// Whether the thread has asked for views of this tensor so many times in a row. (Of another one by
/// now, at its address: no matter.)
bool is_viewed_often(const at::Tensor& plain) {
  static thread_local constinit const c10::TensorImpl* last = nullptr;
  static thread_local constinit unsigned times = 0;
  const c10::TensorImpl* const tensor = plain.unsafeGetTensorImpl();
  if (std::exchange(last, tensor) != tensor) times = 0;
  return ++times >= kOften;
}

/// As PlainStorages::var_of would find it: the storage is where it was when the var was made (or
/// a recorded write may move it just now), and nobody has claimed a copy of it since. And a failure
/// goes with the tensors that it has failed: a plain tensor alone does not keep it.
bool is_current(const Value& value, c10::StorageImpl& user) {
  if (c10::impl::cow::is_cow_data_ptr(user._mutable_data_ptr_no_checks())) return false;
  const StorageVar& var = value.var();
  if (var.awaited()) return true;
  c10::StorageImpl& ours = *var.engine_face().unsafeGetStorageImpl();
  return user._mutable_data_ptr_no_checks().get() == ours._mutable_data_ptr_no_checks().get() &&
         user.nbytes() == ours.nbytes() && !var.failure();
}

}  // namespace

size_t PlainValues::slot_of(const c10::TensorImpl* tensor) {
  const auto address = reinterpret_cast<uintptr_t>(tensor);
  return (address * 0x9E3779B97F4A7C15ull) >> 32 & (kEntries - 1);
}

/// Held by this table, by the engine's face at most once, and by its object of Python, which it
/// keeps in turn. (A used one that is taken for unused comes back.)
bool PlainValues::is_unused(const Entry& entry) {
  if (!entry.value) return false;
  const bool has_object =
      entry.storage.unsafeGetStorageImpl()->pyobj_slot()->load_pyobj() != nullptr;
  return entry.storage.use_count() <= (has_object ? 3u : 2u);
}

/// (A number is one that eager code changes at once outside lazy(), and is copied there. What only
/// C++ knows, as the buckets of DistributedDataParallel, is written at once if it has no var.)
bool PlainValues::may_be_kept(const at::Tensor& plain, size_t most_bytes) {
  c10::TensorImpl* impl = plain.unsafeGetTensorImpl();
  const c10::StorageImpl* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  return plain.dim() > 0 && impl->pyobj_slot()->load_pyobj() && storage->nbytes() <= most_bytes &&
         storage->resizable() && is_usual_cpu_allocator(storage->allocator()) &&
         impl->version_counter().enabled();
}

ValueRef PlainValues::find(const at::Tensor& plain) {
  const c10::TensorImpl* tensor = plain.unsafeGetTensorImpl();
  const c10::Storage& storage = tensor->unsafe_storage();
  ValueRef value;
  {
    const std::lock_guard<engine::SpinLock> lock(mutex_);
    const Entry& entry = entries_[slot_of(tensor)];
    if (entry.tensor != tensor || !entry.value ||
        entry.storage.unsafeGetStorageImpl() != storage.unsafeGetStorageImpl() ||
        identity(entry.version_counter) != identity(tensor->version_counter()))
      return nullptr;
    value = entry.value;
  }
  if (is_current(*value, *storage.unsafeGetStorageImpl()) && matches(value->geometry(), plain))
    return value;
  forget(tensor);
  return nullptr;
}

void PlainValues::forget(const c10::TensorImpl* tensor) {
  Entry forgotten;  // until after the lock: this may free memory
  const std::lock_guard<engine::SpinLock> lock(mutex_);
  Entry& entry = entries_[slot_of(tensor)];
  if (entry.tensor != tensor || !entry.value) return;
  std::swap(entry, forgotten);
  --used_;
}

void PlainValues::keep(const at::Tensor& plain, const ValueRef& value) {
  const c10::TensorImpl* tensor = plain.unsafeGetTensorImpl();
  Entry entry{tensor, tensor->unsafe_storage(), tensor->version_counter(), value};
  std::array<Entry, kLooks> dropped;  // until after the lock
  const std::lock_guard<engine::SpinLock> lock(mutex_);
  for (Entry& unused : dropped) {
    next_ = (next_ + 1) % kEntries;
    if (!is_unused(entries_[next_])) continue;
    std::swap(unused, entries_[next_]);
    --used_;
  }
  Entry& place = entries_[slot_of(tensor)];
  if (!place.value) ++used_;
  std::swap(place, entry);
}

void PlainValues::keep_large(const at::Tensor& plain, const ValueRef& value) {
  if (const c10::TensorImpl* const other = large_.exchange(plain.unsafeGetTensorImpl()))
    forget(other);
  keep(plain, value);
}

/// As another tensor comes: lets go of the large one if it is unused.
void PlainValues::look_at_large(const at::Tensor& asked_for) {
  const c10::TensorImpl* large = large_.load(std::memory_order_relaxed);
  if (!large || large == asked_for.unsafeGetTensorImpl()) return;
  {
    const std::lock_guard<engine::SpinLock> lock(mutex_);
    const Entry& entry = entries_[slot_of(large)];
    if (entry.tensor == large && entry.value && !is_unused(entry)) return;
  }
  if (large_.compare_exchange_strong(large, nullptr)) forget(large);
}

ValueRef PlainValues::value_of(const at::Tensor& plain, bool viewed) {
  look_at_large(plain);
  if (ValueRef known = find(plain)) return known;
  ValueRef value = value_of_argument(plain);
  value->var().used_as_plain.store(true, std::memory_order_relaxed);
  if (value->var().failure()) return value;
  if (may_be_kept(plain, kMostBytes))
    keep(plain, value);
  else if (viewed && is_viewed_often(plain) && may_be_kept(plain, SIZE_MAX))
    keep_large(plain, value);
  return value;
}

template <class Condition>
void PlainValues::drop_if(const Condition& condition) {
  std::vector<Entry> dropped;  // until after the lock
  {
    const std::lock_guard<engine::SpinLock> lock(mutex_);
    if (used_ == 0) return;
  }
  dropped.reserve(kEntries);
  const std::lock_guard<engine::SpinLock> lock(mutex_);
  for (Entry& entry : entries_) {
    if (!condition(entry)) continue;
    dropped.push_back(std::exchange(entry, {}));
    --used_;
  }
}

void PlainValues::drop_unused() { drop_if(&is_unused); }

void PlainValues::drop_all() {
  drop_if([](const Entry& entry) { return static_cast<bool>(entry.value); });
}

PlainValues& plain_values() {
  static PlainValues* const instance = new PlainValues;  // engine threads may outlive statics
  return *instance;
}

ValueRef new_value_of(const at::Tensor& plain) {
  return make_ref<Value>(plain_storages().var_of(plain), geometry_of(plain));
}

// (Parameters are kept in any case.)
ValueRef value_of_argument(const at::Tensor& plain) {
  ValueRef value = new_value_of(plain);
  if (value->var().nbytes() >= kLeastCounted && plain.is_cpu() && !plain.requires_grad())
    value->var().may_be_left.store(true, std::memory_order_relaxed);
  return value;
}

}  // namespace lazyeng::run
