// csrc/run/plain_storage.h: the table from a plain tensor's storage to its engine var, and the
// guard.
//
// The table holds vars weakly: a var removes itself when it dies. A var holds the user face weakly,
// which keeps the address of a dead StorageImpl from being used again while it stands in the table.
//
// The lock of the table is a leaf: its holder never wants the GIL. So no StorageImpl is let go of
// under it: the last reference frees memory, perhaps of a numpy array, whose deleter takes the GIL.
#pragma once

#include <unordered_map>
#include <unordered_set>

#include "csrc/run/storage_var.h"

namespace lazyeng::run {

class PlainStorages {
 public:
  /// The var of a plain strided tensor's storage; made at first sight. Also notes the tensor's
  /// version counter.
  StorageVarRef var_of(const at::Tensor& plain);

  /// The var of a plain tensor's storage, or null if no op has been recorded on it.
  StorageVarRef find(const at::Tensor& plain);
  StorageVarRef find(const c10::Storage& plain);
  /// Whether accesses to the plain tensor's memory raise now.
  bool is_guarded(const at::Tensor& plain);

  /// A storage for plain tensors over the var's memory (which must exist): always the same one
  /// while anybody holds it.
  c10::Storage user_face(StorageVar& var);

  /// Makes accesses to the user face raise until release(), unless no recorded write is pending.
  /// To be called once a write counts as pending: any thread may lift every other guard.
  void guard(StorageVar& var);
  /// Lifts the guard if no recorded write is pending any more.
  void release(StorageVar& var);
  /// After an op that may have resized the storage through one face, and before it completes: the
  /// other face follows to the new memory.
  void follow_resize(StorageVar& var, bool through_user_face);

  /// Lifts the guard for the op that holds the write.
  void lift_for_writer(StorageVar& var);
  /// Lifts every guard that can be lifted.
  void release_complete();
  /// The vars that are guarded now.
  std::vector<StorageVarRef> guarded();

  void forget(StorageVar& var);  // called by ~StorageVar

  /// Around a fork (csrc/record/fork.cpp).
  void hold() { mutex_.lock(); }
  void let_go() { mutex_.unlock(); }

 private:
  using Face = c10::intrusive_ptr<c10::StorageImpl>;

  void attach(StorageVar& var, const c10::Storage& user);
  /// Returns the user face, if it lives, for the caller to let go of after the lock.
  Face lift(StorageVar& var);
  /// Null if the var is dying: its writes are complete, and whoever has asked will not wait for its
  /// destructor, so its guard is lifted here, as lift() does it.
  StorageVarRef retain(StorageVar& var, Face& alive);

  std::mutex mutex_;
  std::unordered_map<c10::StorageImpl*, StorageVar*> vars_;
  std::unordered_set<StorageVar*> guarded_;
};

PlainStorages& plain_storages();

/// The face that owns the memory, if `storage` is the other one.
const c10::Storage& owning_storage(const c10::Storage& storage);
/// What the allocator has given for it.
at::DataPtr& owning_data(const c10::Storage& storage);

}  // namespace lazyeng::run
