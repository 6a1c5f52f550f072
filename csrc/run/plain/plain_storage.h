// csrc/run/plain/plain_storage.h: the table from a plain tensor's storage to its engine var, and
// the guard.
//
// The table holds vars weakly: a var removes itself when it dies. A var holds the user face weakly,
// which keeps the address of a dead StorageImpl from being used again while it stands in the table.
//
// On a device a var dies when its last op is launched: what other streams than the default one then
// still do with the memory is left here, for the next var of the plain tensor, and for the end of
// the block.
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

  /// The var of a plain tensor's storage, or null if no op has been recorded on it that is not
  /// over.
  StorageVarRef find(const at::Tensor& plain);
  StorageVarRef find(const c10::Storage& plain);
  /// Whether accesses to the plain tensor's memory raise now.
  bool is_guarded(const at::Tensor& plain);

  /// A storage for plain tensors over the var's memory (which must exist): always the same one
  /// while anybody holds it.
  c10::Storage user_face(StorageVar& var);

  /// Makes accesses to the user face raise until release(), unless no recorded write is pending.
  /// To be called once a write counts as pending: any thread may lift every other guard. Whether
  /// they do, so that a plain tensor may be looked at before the write is complete.
  bool guard(StorageVar& var);
  /// Lifts the guard if no recorded write is pending any more.
  void release(StorageVar& var);
  /// Before an op that may resize the storage: memory that the other face has given away (to a
  /// numpy array, say) cannot grow.
  void share_resizability(StorageVar& var);
  /// After an op that may have resized the storage through one face, and before it completes: the
  /// other face follows to the new memory.
  void follow_resize(StorageVar& var, bool through_user_face);

  /// Whether plain tensors have moved the memory by a call that nobody recorded (resize_, or an
  /// `out=` that grows).
  bool has_moved(const StorageVar& var);
  /// The same, for who has a claim on the var that is granted. Takes no lock if the memory was a
  /// plain tensor's first.
  bool has_moved_under(const StorageVar& var);

  /// A kernel is about to reach memory that it has a claim on through the user face: there is no
  /// guard until it has left, also if somebody records a write meanwhile.
  void enter(StorageVar& var);
  void leave(StorageVar& var);
  /// The same for good, for a write that goes on when its kernel has returned (of a collective).
  void lift_for_writer(StorageVar& var);
  /// Lifts every guard that can be lifted.
  void release_complete();
  /// The vars that are guarded now.
  std::vector<StorageVarRef> guarded();
  /// Whether anybody but the engine holds the plain memory. GIL.
  bool is_held(StorageVar& var);
  /// Whether ops of the engine use memory of plain tensors that somebody holds, or wait for it.
  /// (What is recorded and not on its way there does not count.) Of very many nobody looks: yes.
  /// GIL.
  bool may_be_in_use();
  /// Vars of plain memory that other streams than the default one may still be writing, by ops
  /// whose vars are gone.
  std::vector<StorageVarRef> written_elsewhere();

  void forget(StorageVar& var);  // called by ~StorageVar

  /// Around a fork (csrc/record/process/fork.cpp).
  void hold() { mutex_.lock(); }
  void let_go() { mutex_.unlock(); }
  void after_fork_in_child();

 private:
  using Face = c10::intrusive_ptr<c10::StorageImpl>;

  /// What a var that is gone knew of its streams.
  struct Left {
    explicit Left(StorageVar& var) : user_face(std::move(*var.user_face_ref_)) {
      streams.take(var.streams);
    }
    const c10::weak_intrusive_ptr<c10::StorageImpl> user_face;
    StreamUses streams;
  };
  using LeftTable = std::unordered_map<c10::StorageImpl*, Left>;
  using LeftEntries = std::vector<LeftTable::node_type>;

  StorageVarRef var_of(const c10::Storage& user);
  void attach(StorageVar& var, const c10::Storage& user);
  /// Returns the user face, if it lives, for the caller to let go of after the lock.
  Face lift(StorageVar& var);
  static void raise(Face& alive);
  /// Null if the var is dying: its writes are complete, and whoever has asked will not wait for its
  /// destructor, so its guard is lifted here, as lift() does it.
  StorageVarRef retain(StorageVar& var, Face& alive);
  /// Whether anybody but the engine, and `alive`, holds the user face.
  static bool is_held_by_others(const StorageVar& var, const Face& alive);
  /// Entries that nobody needs any more, for the caller to let go of after the lock.
  void sweep_left(LeftEntries& over);

  static constexpr size_t kFewLeft = 64;
  /// To look at one takes some 20 ns; at ten thousand, longer than most blocks.
  static constexpr size_t kMostLookedAt = 4096;

  std::mutex mutex_;
  std::unordered_map<c10::StorageImpl*, StorageVar*> vars_;
  std::unordered_set<StorageVar*> guarded_;
  LeftTable left_;
  size_t sweep_left_at_ = kFewLeft;
};

PlainStorages& plain_storages();

/// The face that owns the memory, if `storage` is the other one.
const c10::Storage& owning_storage(const c10::Storage& storage);
/// What the allocator has given for it.
at::DataPtr& owning_data(const c10::Storage& storage);

}  // namespace lazyeng::run
