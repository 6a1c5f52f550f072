// csrc/run/storage_var.cpp: version bookkeeping of storages shared with plain tensors; siblings.
#include "csrc/run/storage_var.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <unordered_map>
#include <vector>

#include "csrc/run/device/safe_free.h"
#include "csrc/run/plain/own_writes.h"
#include "csrc/run/plain/plain_storage.h"

namespace lazyeng::run {
namespace {

/// The counters that some var tracks.
struct Table {
  std::mutex mutex;
  std::unordered_map<const void*, std::weak_ptr<TrackedVersion>> versions;
  std::atomic<bool> some{false};
  size_t sweep_at = 256;

  std::shared_ptr<TrackedVersion> find_or_add(const c10::VariableVersion& counter) {
    std::lock_guard lock(mutex);
    if (versions.size() >= sweep_at) {
      std::erase_if(versions, [](const auto& entry) { return entry.second.expired(); });
      sweep_at = std::max<size_t>(256, 2 * versions.size());
    }
    // (An entry that is not expired holds its counter, so the address is that counter's.)
    std::weak_ptr<TrackedVersion>& entry = versions[identity(counter)];
    std::shared_ptr<TrackedVersion> tracked = entry.lock();
    if (!tracked) entry = tracked = std::make_shared<TrackedVersion>(counter);
    some.store(true, std::memory_order_release);
    return tracked;
  }
};

// A recorded write is counted when it is recorded (own_writes, under the table's lock) and bumps
// its counter afterwards (ADInplaceOrView, when our kernel has returned). So version less own
// writes, taken while own writes stand still, is the number of foreign writes less the writes that
// other threads are about to bump for: never too large. Foreign writes do not become fewer, so the
// most that was ever counted is right if it was counted between the last foreign write and the next
// own one, which whoever counts an own write does.

/// The version first: never too large, but too small while writes are recorded.
int64_t foreign_writes_now(const TrackedVersion& tracked) {
  const int64_t version = tracked.counter.current_version();
  return version - tracked.own_writes.load(std::memory_order_seq_cst);
}

int64_t most_foreign_writes(TrackedVersion& tracked) {
  const int64_t found = foreign_writes_now(tracked);
  int64_t most = tracked.most_foreign.load(std::memory_order_relaxed);
  while (found > most && !tracked.most_foreign.compare_exchange_weak(most, found)) {
  }
  return std::max(found, most);
}

Table& table() {
  static Table* const instance = new Table;
  return *instance;
}

/// Of the writes announced by this thread and not recorded yet.
thread_local std::vector<const void*> announced;

/// Those that this thread has counted last, and torch may not have bumped yet.
thread_local std::vector<std::shared_ptr<TrackedVersion>> not_bumped;

/// Null if nobody tracks the tensor's counter.
std::shared_ptr<TrackedVersion> count_own_write(const at::Tensor& tensor) {
  const c10::VariableVersion& counter = tensor.unsafeGetTensorImpl()->version_counter();
  if (!counter.enabled()) return nullptr;
  std::lock_guard lock(table().mutex);
  auto found = table().versions.find(identity(counter));
  if (found == table().versions.end()) return nullptr;
  std::shared_ptr<TrackedVersion> tracked = found->second.lock();
  if (!tracked) return nullptr;
  most_foreign_writes(*tracked);
  tracked->own_writes.fetch_add(1, std::memory_order_seq_cst);
  return tracked;
}

/// Whether the write has been counted before its op was called.
bool was_announced(const at::Tensor& tensor) {
  if (announced.empty()) [[likely]]
    return false;
  const void* const counter = identity(tensor.unsafeGetTensorImpl()->version_counter());
  const auto found = std::ranges::find(announced, counter);
  if (found == announced.end()) {
    announced.clear();  // the op that they were for has raised
    return false;
  }
  announced.erase(found);  // (one of them: a tensor may be given for two arguments)
  return true;
}

}  // namespace

const void* identity(const c10::VariableVersion& counter) {
  static_assert(sizeof(c10::VariableVersion) == sizeof(void*));
  const void* pointer = nullptr;
  std::memcpy(&pointer, &counter, sizeof pointer);
  return pointer;
}

StorageVar::~StorageVar() {
  if (siblings) siblings->remove(this);
  if (exposed()) plain_storages().forget(*this);
  drop_memory();
}

void StorageVar::drop_memory() {
  free_safely(engine_face_);
  engine_face_ = c10::Storage();
}

std::shared_ptr<TrackedVersion> track_version(const at::Tensor& tensor) {
  const c10::VariableVersion& counter = tensor.unsafeGetTensorImpl()->version_counter();
  return counter.enabled() ? table().find_or_add(counter) : nullptr;
}

void StorageVar::note_plain_tensor(const at::Tensor& tensor) {
  if (std::shared_ptr<TrackedVersion> tracked = track_version(tensor))
    note_version(std::move(tracked));
}

void StorageVar::note_version(std::shared_ptr<TrackedVersion> tracked) {
  const int64_t base = most_foreign_writes(*tracked);
  const std::lock_guard<engine::SpinLock> lock(versions_mutex_);
  for (const SeenVersion& seen : versions_)
    if (seen.tracked == tracked) return;
  if (versions_.size() >= 8) drop_versions_that_are_over();
  const bool first = versions_.empty();
  if (first) only_base_ = base;
  TrackedVersion* const only = first ? tracked.get() : nullptr;
  versions_.push_back({std::move(tracked), base});
  only_version_.store(only, std::memory_order_release);
}

/// What they add to the sum, which recorded reads remember, stays in it. Under versions_mutex_. Not
/// the first one: who reads without the lock may have found it.
void StorageVar::drop_versions_that_are_over() {
  const auto is_over = [this](const SeenVersion& seen) {
    if (!seen.tracked->is_over()) return false;
    earlier_foreign_writes_ += most_foreign_writes(*seen.tracked) - seen.base;
    return true;
  };
  versions_.erase(std::remove_if(versions_.begin() + 1, versions_.end(), is_over), versions_.end());
}

int64_t StorageVar::foreign_writes() const {
  if (TrackedVersion* const only = only_version_.load(std::memory_order_acquire))
    return most_foreign_writes(*only) - only_base_;
  const std::lock_guard<engine::SpinLock> lock(versions_mutex_);
  int64_t sum = earlier_foreign_writes_;
  for (const SeenVersion& seen : versions_) sum += most_foreign_writes(*seen.tracked) - seen.base;
  return sum;
}

void OwnWrites::add(std::shared_ptr<TrackedVersion> tracked) {
  if (!tracked) return;
  if (counted_.empty()) exceptions_ = std::uncaught_exceptions();
  counted_.push_back(std::move(tracked));
}

void OwnWrites::count(c10::ArrayRef<at::Tensor> written) {
  if (!table().some.load(std::memory_order_acquire)) return;
  for (const at::Tensor& tensor : written)
    if (tensor.defined() && !was_announced(tensor)) add(count_own_write(tensor));
}

void OwnWrites::count_without_var(const at::Tensor& written) { add(expect_bump(written)); }

void OwnWrites::take_back() noexcept {
  std::lock_guard lock(table().mutex);
  for (const std::shared_ptr<TrackedVersion>& tracked : counted_)
    tracked->own_writes.fetch_sub(1, std::memory_order_seq_cst);
  counted_.clear();
}

OwnWrites::~OwnWrites() {
  if (counted_.empty()) [[likely]]
    return;
  if (std::uncaught_exceptions() > exceptions_)
    take_back();
  else
    not_bumped = std::move(counted_);
}

void announce_own_write(const at::Tensor& tensor) {
  if (count_own_write(tensor))
    announced.push_back(identity(tensor.unsafeGetTensorImpl()->version_counter()));
}

std::shared_ptr<TrackedVersion> expect_bump(const at::Tensor& tensor) {
  std::shared_ptr<TrackedVersion> tracked = track_version(tensor);
  if (!tracked) return nullptr;
  std::lock_guard lock(table().mutex);
  most_foreign_writes(*tracked);
  tracked->own_writes.fetch_add(1, std::memory_order_seq_cst);
  return tracked;
}

std::mutex& SiblingGroup::mutex() {
  static auto* const instance = new std::mutex;  // outlives every group
  return *instance;
}

void SiblingGroup::add(StorageVar* var) {
  std::lock_guard lock(mutex());
  members_.push_back(var);
}

void SiblingGroup::remove(StorageVar* var) {
  std::lock_guard lock(mutex());
  std::erase(members_, var);
}

std::vector<StorageVarRef> SiblingGroup::members() const {
  std::vector<StorageVarRef> alive;
  std::lock_guard lock(mutex());
  for (StorageVar* var : members_)
    if (var->try_retain()) alive.push_back(StorageVarRef::adopt(var));
  return alive;
}

}  // namespace lazyeng::run
