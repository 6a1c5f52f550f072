// csrc/engine/dependency_tracker.h: which op may run when, and which version of a var has failed.
//
// Knows vars and the order of pushes; nothing of threads, queues or priorities. An op enters by
// push, is reported ready once, when every access is granted, and leaves by complete.
//
// Thread safety: all functions may be called from any thread. No user code runs in here: neither
// run() nor a destructor of an op, a var or a failure runs under a lock.
//
// Deadlock freedom. Locks: the push lock, then one var's lock; never two vars' locks. Waiting:
// an access waits only for accesses that stand before it at the same var (V1, V2), and the push
// lock makes "before" the same at every var, so along each waits-for edge the push order decreases
// and there is a smallest op, which has every access granted. (The marks of append_mark claim one
// var only, wait for what stands before them, and complete without running anything.)
#pragma once

#include <mutex>
#include <span>

#include "csrc/engine/epoch.h"
#include "csrc/engine/ready_queue.h"

namespace lazyeng::engine {

class DependencyTracker {
 public:
  /// Appends the ops to their vars, under one hold of the push lock, and takes a reference to each.
  /// Adds to `ready` those that are ready at once; any other may be reported, run and gone before
  /// this returns.
  void push(std::span<Ref<Op>> ops, ReadyList& ready);

  /// Appends an op with a single read, which looks at nothing: its turn is the news. Outside the
  /// push order. Takes a reference.
  void append_mark(Op& op, ReadyList& ready);

  /// The failure of a version that the op would look at, or null. For an op that is ready.
  static FailurePtr failed_input(const Op& op);

  /// Publishes the versions that the op has written, as failed if `failure` is set, and lets go of
  /// its accesses. Adds to `ready` the ops whose turn has come. The op is not touched any more.
  static void complete(Op& op, const FailurePtr& failure, ReadyList& ready);

  /// The same for one of its vars, whose version is ready; the op has other claims left.
  static void complete_early(Op& op, const Var& var, ReadyList& ready);

  /// As Engine::fail_unpushed.
  static void fail_unpushed(const Op& op, const FailurePtr& failure);

  /// The wait for all ops pushed so far: close, then ask whether it is complete.
  uint64_t close_epoch();
  bool is_complete(uint64_t epoch);

 private:
  static void append(Op& op, ReadyList& ready);
  static bool append(Access& access);
  static bool is_mark(const Op& op);
  static void grant_read(Var& var, const Op& op);
  static void complete(Access& access, const Op& op, const FailurePtr& failure, ReadyList& ready);
  static Access* retire(Access& access, const FailurePtr& failure);
  static void publish(Var& var, const FailurePtr& failure, FailurePtr& forgotten);
  static Access* grant_next(Var& var);

  std::mutex push_mutex_;
  uint64_t pushes_ = 0;
  EpochList epochs_;
};

}  // namespace lazyeng::engine
