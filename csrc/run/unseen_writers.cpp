// csrc/run/unseen_writers.cpp: memory of others, and memory that others were given.
#include "csrc/run/unseen_writers.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>

#include "csrc/run/buffers.h"
#include "csrc/run/cpu_allocator.h"
#include "csrc/run/plain_storage.h"

namespace lazyeng::run {
namespace {

/// Of tensors over memory whose owner is somebody else (at::from_blob): numpy's, DLPack's, a
/// buffer's. (torch has no name for it.)
c10::DeleterFnPtr deleter_of_foreign() {
  static const c10::DeleterFnPtr deleter = [] {
    static char byte;
    return c10::InefficientStdFunctionContext::makeDataPtr(
               &byte, [](void*) {}, c10::Device(c10::kCPU))
        .get_deleter();
  }();
  return deleter;
}

bool is_torchs_own(const c10::StorageImpl& storage, c10::DeleterFnPtr deleter) {
  return deleter == c10::GetDefaultCPUAllocator()->raw_deleter() || is_buffer_deleter(deleter) ||
         (storage.resizable() && is_usual_cpu_allocator(storage.allocator()));
}

/// Without what was told later.
Writers by_owner(const c10::StorageImpl& storage) {
  const at::DataPtr& data = storage._mutable_data_ptr_no_checks();
  if (!data.get() || !storage.device().is_cpu()) return Writers::seen;
  const c10::DeleterFnPtr deleter = data.get_deleter();
  if (deleter == alias_deleter())
    return by_owner(*static_cast<const c10::Storage*>(data.get_context())->unsafeGetStorageImpl());
  if (!data.get_context() || deleter == deleter_of_foreign()) return Writers::foreign;
  return is_torchs_own(storage, deleter) ? Writers::seen : Writers::shares;
}

}  // namespace

void Lendings::Entry::drop_dead() {
  std::erase_if(handles, [](const auto& handle) { return handle.expired(); });
  // (A counter that only this table holds belongs to tensors that are gone.)
  std::erase_if(aliases, [](const c10::VariableVersion& version) { return version.unique(); });
}

bool Lendings::Entry::says_nothing() const {
  return storage.expired() || (handles.empty() && aliases.empty() && !address_known);
}

Lendings::Entry& Lendings::entry_locked(const c10::Storage& storage) {
  if (entries_.size() >= sweep_at_) {
    for (auto& [address, entry] : entries_) entry.drop_dead();
    std::erase_if(entries_, [](const auto& item) { return item.second.says_nothing(); });
    sweep_at_ = std::max<size_t>(256, 2 * entries_.size());
  }
  some_.store(true, std::memory_order_release);
  Entry& entry = entries_.try_emplace(storage.unsafeGetStorageImpl(), storage).first->second;
  entry.drop_dead();
  return entry;
}

Lendings::Entry* Lendings::find_locked(const c10::StorageImpl* storage) {
  const auto found = entries_.find(storage);
  return found == entries_.end() ? nullptr : &found->second;
}

void Lendings::lend(const c10::Storage& storage, const at::Tensor& handle) {
  std::lock_guard lock(mutex_);
  entry_locked(storage).handles.emplace_back(handle.getIntrusivePtr());
}

void Lendings::tell_address(const c10::Storage& storage) {
  std::lock_guard lock(mutex_);
  entry_locked(storage).address_known = true;
}

void Lendings::note_alias(const c10::Storage& storage, const at::Tensor& alias) {
  const c10::VariableVersion& version = alias.unsafeGetTensorImpl()->version_counter();
  if (!version.enabled()) return;
  std::lock_guard lock(mutex_);
  entry_locked(storage).aliases.push_back(version);
}

Writers Lendings::writers_of(const c10::StorageImpl* storage) {
  if (!some_.load(std::memory_order_acquire)) return Writers::seen;
  std::lock_guard lock(mutex_);
  Entry* entry = find_locked(storage);
  if (!entry) return Writers::seen;
  entry->drop_dead();
  if (!entry->handles.empty()) return Writers::lent;
  return entry->address_known ? Writers::knows_address : Writers::seen;
}

std::vector<c10::VariableVersion> Lendings::alias_versions(const c10::StorageImpl* storage) {
  if (!some_.load(std::memory_order_acquire)) return {};
  std::lock_guard lock(mutex_);
  Entry* entry = find_locked(storage);
  if (!entry) return {};
  entry->drop_dead();
  return entry->aliases;
}

Lendings& lendings() {
  static Lendings* const instance = new Lendings;  // engine threads may outlive statics
  return *instance;
}

Writers writers_of(const c10::StorageImpl& storage) {
  return std::max(by_owner(storage), lendings().writers_of(&storage));
}

}  // namespace lazyeng::run
