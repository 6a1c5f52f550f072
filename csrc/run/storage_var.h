// csrc/run/storage_var.h: one engine var per storage, and what ties a storage to plain tensors.
//
// A storage has an *engine face*: the StorageImpl through which kernels run by the engine reach the
// memory. Once plain tensors share the memory (a plain tensor was an argument, was wrapped, or a
// lazy one was unwrapped) it also has a *user face*: the StorageImpl that those plain tensors hold.
// While a recorded write is not complete the user face is guarded: any access to its data pointer
// raises, so nobody reads stale memory; the engine face is never guarded.
//
// Ownership: whichever face came first owns the memory, the other holds a reference to it. The var
// holds the engine face strongly and the user face weakly, so dropping the plain tensors, or the
// lazy ones, frees what only they used.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <mutex>
#include <vector>

#include "csrc/engine/block_pool.h"
#include "csrc/engine/spin_lock.h"
#include "csrc/engine/var.h"
#include "csrc/run/device/streams.h"
#include "csrc/stacks/stack_table.h"

namespace lazyeng::run {

/// Equal for two tensors exactly if they share a counter. (VariableVersion is one intrusive pointer
/// and offers no way to ask.)
const void* identity(const c10::VariableVersion& counter);

/// The version counter of a plain tensor, and how many of its bumps are writes recorded by lazyeng.
/// Tensors share counters (views, detach), also lazy ones with plain ones, and may leave the
/// storage that they had when they were seen (set_, `.data =`): so writes are counted per counter,
/// not per var.
struct TrackedVersion {
  explicit TrackedVersion(c10::VariableVersion counter) : counter(std::move(counter)) {}

  /// The tensors that shared the counter are gone: it cannot move any more.
  bool is_over() const { return counter.unique(); }

  const c10::VariableVersion counter;
  std::atomic<int64_t> own_writes{0};
  /// The most foreign writes that anybody has counted.
  std::atomic<int64_t> most_foreign{0};
};

/// The vars of one op with several fresh results. If one of these reports its success (a tensor
/// named "info"), a later check of it fails all of them.
class SiblingGroup;
struct OpInfo;

class StorageVar final : public engine::Var, public engine::Pooled<StorageVar> {
 public:
  /// Of an op's output: the storage comes when the op runs.
  explicit StorageVar(uint64_t nbytes) : nbytes_(nbytes) {}
  /// Of memory that exists.
  StorageVar(c10::Storage engine_face, uint64_t nbytes)
      : nbytes_(nbytes), engine_face_(std::move(engine_face)) {}
  /// Of a random generator: ordered like memory, never poisoned.
  struct generator_tag {};
  explicit StorageVar(generator_tag) : Var(Kind::resource), nbytes_(0) {}
  ~StorageVar() override;

  /// Not before the op that makes it has run, which sets it, or who fills a value that is fresh.
  const c10::Storage& engine_face() const { return engine_face_; }
  void set_engine_face(c10::Storage storage) { engine_face_ = std::move(storage); }
  /// Nobody can ask for its memory any more.
  void drop_memory();

  /// Size as of the last recorded op.
  uint64_t nbytes() const { return nbytes_.load(std::memory_order_relaxed); }
  void set_nbytes(uint64_t nbytes) { nbytes_.store(nbytes, std::memory_order_relaxed); }

  // Recorded writes stand in the recorder's window before they are pushed to the engine.
  /// Number of the newest recorded node that writes this var. Under the window's lock.
  void note_recorded_write(uint64_t number) {
    last_write_.store(number, std::memory_order_release);
  }
  uint64_t last_write() const { return last_write_.load(std::memory_order_relaxed); }
  bool has_unpushed() const {
    return last_write_.load(std::memory_order_acquire) >
           pushed_up_to.load(std::memory_order_acquire);
  }
  /// Whether a recorded write is not complete. Unpushed is asked first: the engine counts a write
  /// as pending before pushed_up_to moves past it.
  bool awaited() const { return has_unpushed() || pending(); }

  /// Number of the newest node that the recorder has pushed; nodes are pushed in order.
  static inline std::atomic<uint64_t> pushed_up_to{0};

  // ---- plain tensors sharing the memory; see plain_storage.h for the table of them
  bool exposed() const { return exposed_.load(std::memory_order_acquire); }
  void note_plain_tensor(const at::Tensor& tensor);
  /// A plain tensor over it was an argument in a lazy() block: what is written there, perhaps
  /// through a view, the program wants to find in that tensor.
  std::atomic<bool> used_as_plain{false};
  /// Of a large plain tensor that was an argument, and that the program may let go of before the op
  /// has read it. Counted: its bytes are among the costs of such an op.
  std::atomic<bool> may_be_left{false}, counted{false};
  void note_version(std::shared_ptr<TrackedVersion> tracked);
  /// Changes made to the plain tensors other than through recorded writes, up to a constant. If a
  /// read counts more when it runs than when it was recorded, eager code has interfered.
  int64_t foreign_writes() const;

  Ref<SiblingGroup> siblings;  ///< set when recorded, before the op is appended to the window

  /// The newest recorded op that writes this var, for repr(). Guarded by the window's lock.
  struct Writer {
    const OpInfo* info = nullptr;
    stacks::StackRef stack;
  };
  Writer writer;

  /// Number of the newest node put into the window that reads or writes this var. Guarded by the
  /// window's lock.
  uint64_t last_access = 0;
  /// Whether the engine has all ops that were recorded on this var. With the window's lock. Whoever
  /// wants to know whether they are over asks idle() after this: an op on its way to the engine is
  /// not yet there when that is asked first, and no longer here when this is asked then.
  bool all_pushed() const { return last_access <= pushed_up_to.load(std::memory_order_acquire); }

  /// The program has a plain tensor over its memory: who recorded reads before that is done.
  std::atomic<bool> handed_out{false};

  /// On a device: it is memory of a plain tensor, which any stream may have allocated; the
  /// allocator was not told yet that the default one uses it.
  std::atomic<bool> pool_is_unknown{false};

  /// Place in a table of csrc/fuse/partition.cpp. Guarded by the lock of pushes.
  uint32_t partition_index = 0;
  /// The newest foreign kernel (fuse/foreign_kernels.h) that the newest write waits for, or a read
  /// since then; 0: none. Guarded by the lock of pushes.
  uint64_t written_behind = 0, read_behind = 0;

  /// The program has read its values: it may again.
  std::atomic<bool> values_read{false};

 private:
  friend class PlainStorages;

  void drop_versions_that_are_over();

  std::atomic<uint64_t> nbytes_;
  std::atomic<uint64_t> last_write_{0};
  std::atomic<bool> exposed_{false};
  c10::Storage engine_face_;
  mutable engine::SpinLock versions_mutex_;
  struct SeenVersion {
    std::shared_ptr<TrackedVersion> tracked;
    int64_t base;  // its foreign writes when it was seen here first
  };
  std::vector<SeenVersion> versions_;   // the first stays
  int64_t earlier_foreign_writes_ = 0;  // of counters that are no longer among them
  // While it is the only one: that, to be read without the lock.
  std::atomic<TrackedVersion*> only_version_{nullptr};
  int64_t only_base_ = 0;

  // Guarded by the mutex of PlainStorages.
  c10::StorageImpl* user_face_ = nullptr;
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> user_face_ref_;
  bool guarded_ = false;
  uint32_t kernels_inside_ = 0;  // see PlainStorages::enter

 public:
  /// On a device: where the memory is in use.
  StreamUses streams;
};
using StorageVarRef = Ref<StorageVar>;

/// That of the tensor's counter, from now on; null if torch does not count its writes (an inference
/// tensor).
std::shared_ptr<TrackedVersion> track_version(const at::Tensor& tensor);

class SiblingGroup final : public RefCounted {
 public:
  /// Members are weak: a var leaves when it dies.
  void add(StorageVar* var);
  void remove(StorageVar* var);
  std::vector<StorageVarRef> members() const;

  /// Guards the members of all groups, which are few and small. One for all, so that a fork can
  /// take it (csrc/record/process/fork.cpp).
  static std::mutex& mutex();

 private:
  std::vector<StorageVar*> members_;
};

}  // namespace lazyeng::run
