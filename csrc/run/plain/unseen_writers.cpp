// csrc/run/plain/unseen_writers.cpp: memory of others, and memory that others were given.
#include "csrc/run/plain/unseen_writers.h"

#include <ATen/core/Tensor.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>

#include "csrc/run/memory/buffers.h"
#include "csrc/run/memory/cpu_allocator.h"
#include "csrc/run/plain/plain_storage.h"
#include "csrc/run/storage_var.h"

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

bool is_torchs_own(c10::StorageImpl& storage, c10::DeleterFnPtr deleter) {
  static const c10::DeleterFnPtr usual = c10::GetDefaultCPUAllocator()->raw_deleter();
  return deleter == usual || frees_buffers(deleter) ||
         (storage.resizable() && is_usual_cpu_allocator(storage.allocator()));
}

Writers by_owner(c10::StorageImpl& owner) {
  const at::DataPtr& data = owner._mutable_data_ptr_no_checks();
  if (!data.get() || !owner.device().is_cpu()) return Writers::seen;
  const c10::DeleterFnPtr deleter = data.get_deleter();
  if (is_torchs_own(owner, deleter)) return Writers::seen;
  if (!data.get_context() || deleter == deleter_of_foreign()) return Writers::foreign;
  return Writers::shares;
}

}  // namespace

void Lendings::Entry::drop_dead() {
  std::erase_if(handles, [](const auto& handle) { return handle.expired(); });
  std::erase_if(versions, [](const auto& tracked) { return tracked->is_over(); });
}

bool Lendings::Entry::says_nothing() const {
  return owner.expired() || (handles.empty() && versions.empty() && !address_known);
}

Lendings::Entry& Lendings::entry_locked(const c10::Storage& storage) {
  if (entries_.size() >= sweep_at_) {
    for (auto& [address, entry] : entries_) entry.drop_dead();
    std::erase_if(entries_, [](const auto& item) { return item.second.says_nothing(); });
    sweep_at_ = std::max<size_t>(256, 2 * entries_.size());
  }
  some_.store(true, std::memory_order_release);
  const c10::Storage& owner = owning_storage(storage);
  Entry& entry = entries_.try_emplace(owner.unsafeGetStorageImpl(), owner).first->second;
  entry.drop_dead();
  return entry;
}

Lendings::Entry* Lendings::find_locked(const c10::StorageImpl& owner) {
  const auto found = entries_.find(&owner);
  return found == entries_.end() ? nullptr : &found->second;
}

void Lendings::lend(const c10::Storage& storage, const at::Tensor& handle) {
  std::lock_guard lock(mutex_);
  auto& handles = entry_locked(storage).handles;
  const auto is_same = [&](const auto& known) {
    return known._unsafe_get_target() == handle.unsafeGetTensorImpl();
  };
  if (std::ranges::none_of(handles, is_same)) handles.emplace_back(handle.getIntrusivePtr());
}

void Lendings::tell_address(const c10::Storage& storage) {
  std::lock_guard lock(mutex_);
  entry_locked(storage).address_known = true;
}

void Lendings::note_alias(const c10::Storage& storage, const at::Tensor& alias) {
  std::shared_ptr<TrackedVersion> tracked = track_version(alias);
  if (!tracked) return;
  std::lock_guard lock(mutex_);
  entry_locked(storage).versions.push_back(std::move(tracked));
}

Writers Lendings::writers_of(const c10::StorageImpl& owner) {
  if (!some_.load(std::memory_order_acquire)) return Writers::seen;
  std::lock_guard lock(mutex_);
  Entry* entry = find_locked(owner);
  if (!entry) return Writers::seen;
  entry->drop_dead();
  if (!entry->handles.empty()) return Writers::lent;
  return entry->address_known ? Writers::knows_address : Writers::seen;
}

std::vector<std::shared_ptr<TrackedVersion>> Lendings::versions_of(const c10::Storage& storage) {
  if (!some_.load(std::memory_order_acquire)) return {};
  std::lock_guard lock(mutex_);
  Entry* entry = find_locked(*owning_storage(storage).unsafeGetStorageImpl());
  if (!entry) return {};
  entry->drop_dead();
  return entry->versions;
}

Lendings& lendings() {
  static Lendings* const instance = new Lendings;  // engine threads may outlive statics
  return *instance;
}

// (Pinned memory has an allocator, these have none.)
bool is_mapped(const c10::Storage& storage) {
  c10::StorageImpl& owner = *owning_storage(storage).unsafeGetStorageImpl();
  return by_owner(owner) == Writers::shares && !owner.allocator();
}

Writers writers_of(const c10::Storage& storage) {
  c10::StorageImpl& owner = *owning_storage(storage).unsafeGetStorageImpl();
  return std::max(by_owner(owner), lendings().writers_of(owner));
}

}  // namespace lazyeng::run
