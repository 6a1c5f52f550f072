// csrc/run/plain/plain_storage.cpp: engine face and user face of memory shared with plain tensors.
#include "csrc/run/plain/plain_storage.h"

#include <Python.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/COW.h>

#include <algorithm>
#include <utility>

#include "csrc/run/device/safe_free.h"
#include "csrc/run/plain/unseen_writers.h"

namespace lazyeng::run {
namespace {

// The guard is a flag of StorageImpl's and a message for what it throws. torch's own functions free
// the message when they lower the flag, and put a new one in its place when they raise it. Here
// another thread may be about to throw it: the engine lifts a guard while the program looks at the
// memory. So a storage keeps the message that it got with its first guard, and the flag alone is
// switched. (An explicit instantiation may name private members.)
void raise_flag(c10::StorageImpl& impl);
void lower_flag(c10::StorageImpl& impl);
bool has_message(const c10::StorageImpl& impl);

template <auto flag, auto refresh, auto extra>
struct GuardAccess {
  friend void raise_flag(c10::StorageImpl& impl) {
    impl.*flag = true;
    (impl.*refresh)();
  }
  friend void lower_flag(c10::StorageImpl& impl) {
    impl.*flag = false;
    (impl.*refresh)();
  }
  friend bool has_message(const c10::StorageImpl& impl) {
    return impl.*extra && (impl.*extra)->custom_data_ptr_error_msg_;
  }
};
template struct GuardAccess<&c10::StorageImpl::throw_on_immutable_data_ptr_,
                            &c10::StorageImpl::refresh_has_data_ptr_check,
                            &c10::StorageImpl::extra_meta_>;

constexpr const char* kGuardMessage =
    "lazyeng: a recorded write to this tensor is not complete, so its memory cannot be read "
    "directly; "
    "call lazyeng.synchronize() or leave the lazyeng.lazy() block first";

void drop_storage(void* context) {
  auto* const owner = static_cast<c10::Storage*>(context);
  free_safely(*owner);
  delete owner;
}

/// A pointer to the memory of `owner`, which it keeps alive.
at::DataPtr alias_of(const c10::Storage& owner) {
  const at::DataPtr& data = owner.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  return at::DataPtr(data.get(), new c10::Storage(owner), &drop_storage, data.device());
}

/// A second StorageImpl over the memory of `owner`, which it keeps alive.
c10::Storage second_face(const c10::Storage& owner) {
  c10::StorageImpl* impl = owner.unsafeGetStorageImpl();
  // (Shared memory says that it is resizable, and has no allocator to do it.)
  return c10::Storage(c10::Storage::use_byte_size_t(), impl->nbytes(), alias_of(owner),
                      impl->allocator(), impl->resizable() && impl->allocator());
}

/// Host memory that is not torch's own: of a numpy array, which is copied at the call, or pinned,
/// of which eager copies to a device do not wait either.
bool is_given(const c10::StorageImpl& impl) {
  const c10::Allocator* const allocator = impl.allocator();
  return impl.device().is_cpu() && allocator != c10::GetCPUAllocator() &&
         allocator != c10::GetDefaultCPUAllocator();  // (of tensors made before lazyeng came)
}

const void* address(const c10::Storage& storage) {
  return storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get();
}

bool differ(const c10::Storage& a, const c10::Storage& b) {
  return address(a) != address(b) || a.nbytes() != b.nbytes();
}

/// Whose memory an alias points to; null for memory of the storage's own.
const c10::Storage* owner_of(const c10::Storage& storage) {
  const at::DataPtr& data = storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  return data.cast_context<c10::Storage>(&drop_storage);
}

/// The follower becomes an alias of the storage that has moved. What it held: it may be the last
/// reference to somebody's memory.
at::DataPtr move_to(StorageVar& var, const c10::Storage& follower, const c10::Storage& moved) {
  // (An alias that was moved has memory of its own by now. If not, its owner has moved.)
  if (const c10::Storage* const owner = owner_of(moved); owner && owner->is_alias_of(follower))
    return move_to(var, moved, follower);
  c10::StorageImpl* impl = follower.unsafeGetStorageImpl();
  at::DataPtr old = std::move(impl->_mutable_data_ptr_no_checks());
  impl->set_data_ptr_noswap(alias_of(moved));
  impl->set_nbytes(moved.nbytes());
  var.set_nbytes(moved.nbytes());
  return old;
}

}  // namespace

StorageVarRef PlainStorages::var_of(const at::Tensor& plain) {
  StorageVarRef var = var_of(plain.unsafeGetTensorImpl()->unsafe_storage());
  var->note_plain_tensor(plain);
  return var;
}

StorageVarRef PlainStorages::var_of(const c10::Storage& user) {
  c10::StorageImpl* impl = user.unsafeGetStorageImpl();
  // A lazily copied storage gets memory of its own before anything is written through a second
  // face.
  if (c10::impl::cow::is_cow_data_ptr(impl->_mutable_data_ptr_no_checks())) impl->mutable_data();
  StorageVarRef var;
  StorageVarRef moved;  // dropped after the lock, which its destructor takes
  at::DataPtr old;
  std::lock_guard lock(mutex_);
  auto found = vars_.find(impl);
  if (found != vars_.end() && found->second->try_retain())
    var = StorageVarRef::adopt(found->second);
  // (Not while a recorded write is pending: it may be the one that resizes, one face after the
  // other. While reads of the memory that it has left may run, it is another storage.)
  if (var && !var->awaited() && differ(var->engine_face(), user)) {
    if (var->idle())
      old = move_to(*var, /*follower=*/var->engine_face(), user);
    else
      std::swap(var, moved);
  }
  if (!var) {
    var = make_ref<StorageVar>(second_face(user), user.nbytes());
    attach(*var, user);
    var->handed_out.store(true, std::memory_order_release);
    var->pool_is_unknown.store(!user.device().is_cpu(), std::memory_order_relaxed);
  }
  return var;
}

StorageVarRef PlainStorages::find(const at::Tensor& plain) {
  return plain.has_storage() ? find(plain.unsafeGetTensorImpl()->unsafe_storage()) : nullptr;
}

StorageVarRef PlainStorages::find(const c10::Storage& plain) {
  Face alive;
  {
    std::lock_guard lock(mutex_);
    c10::StorageImpl* const impl = plain.unsafeGetStorageImpl();
    auto found = vars_.find(impl);
    if (found == vars_.end()) {
      if (!left_.contains(impl)) return nullptr;
    } else {
      StorageVarRef var = retain(*found->second, alive);
      if (var || found->second->streams.only_default()) return var;
    }
  }
  return var_of(plain);  // other streams may still be at work on it
}

StorageVarRef PlainStorages::retain(StorageVar& var, Face& alive) {
  if (var.try_retain()) return StorageVarRef::adopt(&var);
  if (var.guarded_) alive = lift(var);
  return nullptr;
}

bool PlainStorages::is_guarded(const at::Tensor& plain) {
  if (!plain.has_storage()) return false;
  std::lock_guard lock(mutex_);
  if (guarded_.empty()) return false;
  auto found = vars_.find(plain.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
  return found != vars_.end() && found->second->guarded_;
}

c10::Storage PlainStorages::user_face(StorageVar& var) {
  std::lock_guard lock(mutex_);
  if (var.user_face_ref_)
    if (auto alive = var.user_face_ref_->lock()) return c10::Storage(std::move(alive));
  if (var.user_face_) vars_.erase(var.user_face_);
  c10::Storage user = second_face(var.engine_face());
  attach(var, user);
  return user;
}

void PlainStorages::attach(StorageVar& var, const c10::Storage& user) {
  var.user_face_ = user.unsafeGetStorageImpl();
  var.user_face_ref_.emplace(user.getWeakStorageImpl());
  var.exposed_.store(true, std::memory_order_release);
  for (auto& tracked : lendings().versions_of(user)) var.note_version(std::move(tracked));
  // (The caller holds the user face, so the weak reference in what is left is not the last one.)
  if (!left_.empty())
    if (auto left = left_.extract(var.user_face_)) var.streams.take(left.mapped().streams);
  StorageVar*& entry = vars_[var.user_face_];
  // The one before is dying, or its memory was left: no write of it is pending. (The caller holds
  // the user face, so the reference that lift() returns is not the last one.)
  if (entry && entry->guarded_) lift(*entry);
  if (entry && entry->use_count() == 0) var.streams.take(entry->streams);
  entry = &var;
}

bool PlainStorages::guard(StorageVar& var) {
  Face alive;
  std::lock_guard lock(mutex_);
  if (!var.user_face_ref_ || !var.awaited()) return false;
  alive = var.user_face_ref_->lock();
  if (!alive) return false;
  if (!var.guarded_) {
    if (var.kernels_inside_ == 0) raise(alive);
    var.guarded_ = true;
    guarded_.insert(&var);
  }
  return is_held_by_others(var, alive);
}

void PlainStorages::raise(Face& alive) {
  if (has_message(*alive))
    raise_flag(*alive);
  else  // (The name is torch's; it releases nothing: it makes data accesses raise with the
        // message.)
    alive->release_data_and_set_meta_custom_data_ptr_error_msg_(std::string(kGuardMessage));
}

void PlainStorages::enter(StorageVar& var) {
  Face alive;
  std::lock_guard lock(mutex_);
  ++var.kernels_inside_;
  if (!var.guarded_) return;
  alive = var.user_face_ref_->lock();
  if (alive) lower_flag(*alive);
}

void PlainStorages::leave(StorageVar& var) {
  Face alive;
  std::lock_guard lock(mutex_);
  if (--var.kernels_inside_ != 0 || !var.guarded_) return;
  alive = var.awaited() ? var.user_face_ref_->lock() : lift(var);
  if (alive && var.guarded_) raise(alive);
}

bool PlainStorages::is_held_by_others(const StorageVar& var, const Face& alive) {
  uint32_t ours = 1;  // `alive` itself
  if (&owning_storage(var.engine_face()) != &var.engine_face()) ++ours;
  // Python's object for a storage lives, and has a reference to it, for as long as anybody in C++
  // has one, which is then the only one to the object.
  PyObject* const wrapper = alive->pyobj_slot()->load_pyobj();
  if (wrapper && Py_REFCNT(wrapper) == 1) ++ours;
  return alive.use_count() > ours;
}

PlainStorages::Face PlainStorages::lift(StorageVar& var) {
  var.guarded_ = false;
  guarded_.erase(&var);
  Face alive = var.user_face_ref_->lock();
  if (alive) lower_flag(*alive);
  return alive;
}

void PlainStorages::release(StorageVar& var) {
  if (!var.exposed()) return;
  Face alive;
  std::lock_guard lock(mutex_);
  if (var.guarded_ && !var.awaited()) alive = lift(var);
}

void PlainStorages::share_resizability(StorageVar& var) {
  if (!var.exposed()) return;
  Face alive;
  std::lock_guard lock(mutex_);
  alive = var.user_face_ref_->lock();
  if (alive && !alive->resizable() && var.engine_face())
    var.engine_face().unsafeGetStorageImpl()->set_resizable(false);
}

void PlainStorages::follow_resize(StorageVar& var, bool through_user_face) {
  if (!var.exposed()) return;
  at::DataPtr old;  // it may hold the last reference to somebody's memory
  Face alive;
  std::lock_guard lock(mutex_);
  alive = var.user_face_ref_->lock();
  if (!alive) return;
  const c10::Storage user(alive);
  const c10::Storage& moved = through_user_face ? user : var.engine_face();
  const c10::Storage& follower = through_user_face ? var.engine_face() : user;
  if (differ(moved, follower)) old = move_to(var, follower, moved);
}

bool PlainStorages::has_moved_under(const StorageVar& var) {
  if (!var.exposed() || var.awaited()) return false;
  // (While the claim is granted nobody makes it an alias of another storage: var_of and
  // follow_resize do that, the one if the var is idle, the other for who holds the write.)
  if (const c10::Storage* const owner = var.engine_face() ? owner_of(var.engine_face()) : nullptr)
    return differ(var.engine_face(), *owner);
  return has_moved(var);
}

bool PlainStorages::has_moved(const StorageVar& var) {
  if (!var.exposed() || var.awaited()) return false;
  Face alive;
  std::lock_guard lock(mutex_);
  // (An alias keeps the storage that it points to.)
  if (!var.engine_face()) return false;
  if (const c10::Storage* const owner = owner_of(var.engine_face()))
    return differ(var.engine_face(), *owner);
  alive = var.user_face_ref_->lock();
  return alive && differ(var.engine_face(), c10::Storage(alive));
}

void PlainStorages::lift_for_writer(StorageVar& var) {
  Face alive;
  std::lock_guard lock(mutex_);
  if (var.guarded_) alive = lift(var);
}

void PlainStorages::release_complete() {
  std::vector<Face> alive;
  std::lock_guard lock(mutex_);
  const std::vector<StorageVar*> all(guarded_.begin(), guarded_.end());
  for (StorageVar* var : all)
    if (!var->awaited()) alive.push_back(lift(*var));
}

std::vector<StorageVarRef> PlainStorages::guarded() {
  std::vector<StorageVarRef> vars;
  std::vector<Face> faces;
  std::lock_guard lock(mutex_);
  const std::vector<StorageVar*> all(guarded_.begin(), guarded_.end());
  for (StorageVar* var : all) {
    Face alive;
    if (StorageVarRef kept = retain(*var, alive)) vars.push_back(std::move(kept));
    if (alive) faces.push_back(std::move(alive));
  }
  return vars;
}

bool PlainStorages::is_held(StorageVar& var) {
  if (!var.exposed()) return false;
  Face alive;
  std::lock_guard lock(mutex_);
  alive = var.user_face_ref_->lock();
  return alive && is_held_by_others(var, alive);
}

bool PlainStorages::may_be_in_use() {
  std::vector<Face> faces;  // until after the lock
  std::lock_guard lock(mutex_);
  if (vars_.size() > kMostLookedAt) return true;
  return std::ranges::any_of(vars_, [&](const auto& entry) {
    const StorageVar& var = *entry.second;
    if (var.idle() || !var.user_face_ref_) return false;
    faces.push_back(var.user_face_ref_->lock());
    return faces.back() && !is_given(*faces.back()) && is_held_by_others(var, faces.back());
  });
}

void PlainStorages::sweep_left(LeftEntries& over) {
  for (auto left = left_.begin(); left != left_.end();) {
    const auto entry = left++;
    if (entry->second.user_face.expired() || entry->second.streams.is_over())
      over.push_back(left_.extract(entry));
  }
  sweep_left_at_ = std::max(kFewLeft, 2 * left_.size());
}

std::vector<StorageVarRef> PlainStorages::written_elsewhere() {
  LeftEntries over;
  std::vector<Face> written;
  {
    std::lock_guard lock(mutex_);
    if (left_.empty()) return {};
    sweep_left(over);
    for (const auto& [impl, left] : left_)
      if (left.streams.written_elsewhere())
        if (Face alive = left.user_face.lock()) written.push_back(std::move(alive));
  }
  std::vector<StorageVarRef> vars;
  for (Face& user : written) vars.push_back(var_of(c10::Storage(std::move(user))));
  return vars;
}

void PlainStorages::forget(StorageVar& var) {
  // Weak references are dropped after the lock: they may free the StorageImpl.
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> last;
  LeftEntries over;
  Face alive;
  std::lock_guard lock(mutex_);
  auto found = vars_.find(var.user_face_);
  // (While this var was dying, a new one may have taken its place: see attach().)
  const bool newest = found != vars_.end() && found->second == &var;
  if (newest) vars_.erase(found);
  if (var.guarded_) alive = lift(var);
  if (newest && !var.streams.only_default()) {
    if (left_.size() >= sweep_left_at_) sweep_left(over);
    left_.try_emplace(var.user_face_, var);
  }
  last.swap(var.user_face_ref_);
}

// (The events are the parent's.)
void PlainStorages::after_fork_in_child() { new LeftTable(std::exchange(left_, {})); }

const c10::Storage& owning_storage(const c10::Storage& storage) {
  const at::DataPtr& data = storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  if (data.get_deleter() != &drop_storage) return storage;
  return owning_storage(*static_cast<const c10::Storage*>(data.get_context()));
}

at::DataPtr& owning_data(const c10::Storage& storage) {
  return owning_storage(storage).unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
}

PlainStorages& plain_storages() {
  static PlainStorages* const instance = new PlainStorages;  // outlives every var
  return *instance;
}

}  // namespace lazyeng::run
