// csrc/engine/var.h: a thing that ops read and write, and the queue of ops that want it.
//
// A var has versions. Each write makes a new one, which is ready or failed once the writing op is
// complete; until then it is pending. Reads of one version run side by side; a write runs alone.
//
// Invariants (kept under mutex_; no two vars' locks are held together):
//   V1  the accesses of one var are granted in the order in which they were appended;
//   V2  granted at any moment: one write and nothing else, or any number of reads;
//   V3  an access is queued only if an earlier one is granted or queued.
// Appending an op to all its vars happens under the engine's push lock, so that the queues of any
// two vars agree on the order of the ops they share: the waits-for graph follows push order and has
// no cycle, whatever threads push (the read-A-write-B against read-B-write-A deadlock of MXNet).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "csrc/engine/ref.h"
#include "csrc/engine/spin_lock.h"

namespace lazyeng::engine {

class Op;

/// What a failed version carries. Opaque to the engine.
class Failure {
 public:
  virtual ~Failure() = default;
  /// The place in the program's order of what failed. Of several failed inputs an op gets the
  /// failure of the first: one op at a time the program would have ended there.
  virtual uint64_t place() const noexcept { return 0; }
};
using FailurePtr = std::shared_ptr<const Failure>;

/// Takes the one that comes first. Either may be null.
inline void take_first(FailurePtr& first, FailurePtr other) {
  if (other && (!first || other->place() < first->place())) first = std::move(other);
}

class Var;

/// One op's claim on one var; an intrusive list node that lives in its op.
struct Access {
  Ref<Var> var;
  Op* op = nullptr;        // the owner; outlives the access's time in the queue
  Access* next = nullptr;  // behind this one in var's queue
  bool write = false;
  /// The write replaces every byte without looking at them: a failed version before it is
  /// forgotten.
  bool overwrites = false;
};

class Var : public RefCounted {
 public:
  enum class Kind : uint8_t {
    data,
    resource,  ///< a random generator and the like: ordered as data is, but never poisoned
  };
  explicit Var(Kind kind = Kind::data) : kind_(kind) {}

  Kind kind() const noexcept { return kind_; }

  /// True while a write that has been appended is not complete. Any thread.
  bool pending() const noexcept { return pending_writes_.load(std::memory_order_acquire) != 0; }

  /// Whether no read and no write of it is granted or queued. (A thread that waits for its writes
  /// does neither.) Any thread; a hint by its nature.
  bool idle() const;

  /// The op whose turn it is to write it, then those that wait for their turn, oldest first. Any
  /// thread; a hint by its nature.
  std::vector<Ref<Op>> pending_ops() const;

  /// The failure of the newest complete version, or null. Any thread.
  FailurePtr failure() const;

 protected:
  ~Var() override = default;

 private:
  friend class DependencyTracker;

  mutable SpinLock mutex_;
  Access* head_ = nullptr;  // oldest access not granted yet
  Access* tail_ = nullptr;
  uint32_t granted_reads_ = 0;
  uint32_t granted_marks_ = 0;  // of these: of waits, which look at nothing
  Op* writer_ = nullptr;        // whose write is granted
  const Kind kind_;
  std::atomic<uint32_t> pending_writes_{0};
  std::atomic<bool> failed_{false};  // whether failure_ is set; spares the lock on the good path
  FailurePtr failure_;               // of the newest complete version
};

}  // namespace lazyeng::engine
