// csrc/engine/op.h: a unit of work with the vars it reads and writes.
//
// Life of an op: built by one thread (add_read, add_write), pushed once, waits until every access
// is granted, runs or is skipped on a thread of its queue, completes, is released by the engine.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>

#include "csrc/engine/access_list.h"
#include "csrc/engine/var.h"
#include "csrc/engine/wait.h"

namespace lazyeng::engine {

class Epoch;

/// Where an op runs. Each further queue (of a device) is a thread of its own that keeps order.
enum class QueueId : uint16_t {
  cpu = 0,
  python = 1,
  collectives = 2,  ///< begins what others end: in order, and soon done
  waits = 3,        ///< waits for others: a thread for each op that does
  first_device = 4,
};

class Op : public RefCounted {
 public:
  /// Does the work. Every access is granted, no version that it reads has failed.
  /// Returns null, or the failure that every version it writes gets. Never throws.
  virtual FailurePtr run() noexcept = 0;

  /// Called instead of run() when a version that it reads (or partly overwrites) has failed.
  /// Returns the failure that its writes carry on; never null.
  virtual FailurePtr skip(const FailurePtr& cause) noexcept { return cause; }

  /// Called after run() or skip(), before the op's writes become visible and its dependents start.
  virtual void finish(const FailurePtr& /*failure*/) noexcept {}

  /// Claims. An op names a var once: naming it again merges (a write absorbs a read, and a write
  /// of something that is also read does not count as an overwrite).
  void add_read(Ref<Var> var);
  void add_write(Ref<Var> var, bool overwrites = false);

  /// What a var that this op writes gets, `failure` being what run() or skip() returned. Asked once
  /// per write, before the op completes.
  virtual const FailurePtr& failure_of(const Var& /*var*/,
                                       const FailurePtr& failure) const noexcept {
    return failure;
  }

  std::span<const Access> claims() const noexcept { return {accesses_.begin(), accesses_.size()}; }
  /// Before the op is pushed: gives its claims up, because another op that is pushed in its place
  /// has made them its own.
  void drop_claims() noexcept { accesses_.clear(); }

  /// While it may still fall, on another thread.
  uint64_t cost_now() const noexcept {
    return std::atomic_ref(const_cast<uint64_t&>(cost_bytes)).load(std::memory_order_relaxed);
  }
  /// Engine::forgo is to be told. One thread at a time.
  void lower_cost(uint64_t bytes) noexcept {
    std::atomic_ref(cost_bytes).store(cost_bytes - bytes, std::memory_order_relaxed);
  }

  /// Whether the last run() has asked to be called once more.
  bool asks_again() const noexcept { return again_ == Again::asked || moves_to_; }
  /// It was run outside of the engine, and is pushed after all: forgets what that run asked for.
  void was_not_run() noexcept { again_ = Again::no; }

  QueueId queue = QueueId::cpu;
  int16_t priority = 0;  ///< higher runs first among ready ops of one queue
  /// What it will allocate: counts against the run-ahead bound. From admit on it may only fall, by
  /// lower_cost(); fixed once pushed.
  uint64_t cost_bytes = 0;
  uint32_t weight = 1;  ///< how many admitted ops it stands for
  /// run() waits for nothing, and takes microseconds, or as long as its thread, which is going to
  /// wait, would have it: a guest may run it. Of queue cpu.
  bool brief = false;
  /// run() is called also if a version that it would look at has failed: it is made of several
  /// parts, and sees itself which of them cannot run.
  bool handles_failures = false;

 protected:
  /// To be called from run(), which then returns null and has changed nothing: the engine runs the
  /// op once more, behind what is ready and when nothing else runs (for lack of memory, say).
  /// False if this is that second time.
  bool run_again_alone() noexcept {
    if (again_ != Again::no) return false;
    again_ = Again::asked;
    return true;
  }

  /// To be called from run(), which then returns null: the engine runs the op once more, on
  /// another queue, to do the rest. A claim on `released`, if it is not null, ends now: others may
  /// have the var meanwhile. Once; the rest may not ask to be run alone.
  void go_on(QueueId queue, const Var* released) noexcept {
    moves_to_ = queue;
    released_ = released;
  }

 private:
  friend class DependencyTracker;
  friend class ReadyList;
  friend class ReadyQueue;
  friend class TrackedEngine;
  friend class WorkerPool;

  /// What happens to the op when its turn comes.
  enum class Turn : uint8_t {
    queue,   ///< a thread of its queue
    caller,  ///< the thread in push_and_run, unless it has left
    wait,    ///< nobody: the op only marks a place, its turn is the news (wait_for_var)
  };

  /// Adds a claim; merges it unless the list is so long that merge_claims() is cheaper.
  void claim(Ref<Var> var, bool write, bool overwrites);
  /// Merges what claim() left. Once, before the op is appended.
  void merge_claims();

  enum class Again : uint8_t { no, asked, granted };

  AccessList accesses_;  // stable once pushed: vars link into it; emptied on completion
  Turn turn_ = Turn::queue;
  Again again_ = Again::no;
  std::optional<QueueId> moves_to_;  // run() has asked to go on there
  bool has_moved_ = false;
  const Var* released_ = nullptr;
  bool merged_ = true;  // no var is named twice in accesses_
  std::atomic<uint32_t> ungranted_{0};
  uint64_t order_ = 0;        // priority, then push order: the smaller runs first
  Op* next_ready_ = nullptr;  // in a ReadyList
  Epoch* epoch_ = nullptr;    // in which it was pushed
  Ref<Waiter> waiter_;        // of turn caller or wait
};

}  // namespace lazyeng::engine
