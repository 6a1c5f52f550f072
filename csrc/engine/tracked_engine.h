// csrc/engine/tracked_engine.h: what the engines have in common: an op's way from ready to gone,
// and the waits. They differ in where a ready op runs (dispatch).
#pragma once

#include "csrc/engine/dependency_tracker.h"
#include "csrc/engine/engine.h"

namespace lazyeng::engine {

class TrackedEngine : public Engine {
 public:
  using Engine::push;
  void push(std::span<Ref<Op>> ops) override;
  WaitResult push_and_run(Ref<Op> op, const Interrupt& interrupt,
                          const std::function<void()>& appended) override;
  WaitResult wait_for_var(Var& var, const Interrupt& interrupt) override;
  WaitResult wait_for_vars(std::span<Var* const> vars, const Interrupt& interrupt) override;
  WaitResult wait_for_all(const Interrupt& interrupt) override;
  WaitResult wait_below_limits(const Interrupt& interrupt) override;

 protected:
  /// Sees to it that the ops run, now or later. They are of turn queue.
  virtual void dispatch(ReadyList ready) = 0;
  /// The calling thread as a guest of this engine, or null.
  virtual Guest* guest() noexcept { return nullptr; }

  // An op that is ready goes through these two, in this order, on one thread. In between, the
  // thread sees to the ops that have become ready, so that they do not wait for destructors.

  enum class Outcome : uint8_t {
    done,
    again,  ///< to be executed once more, behind what else is ready
    moved,  ///< to be executed once more, on what is its queue now
  };
  /// Runs or skips the op and completes it. Adds to `ready` what may run now (not the op itself).
  Outcome execute(Op& op, ReadyList& ready) noexcept;
  /// Releases what the op was admitted with, its vars, and the engine's reference.
  void retire(Op* op) noexcept;

  /// Appends to the vars. Adds to `ready` what may run now.
  void append(std::span<Ref<Op>> ops, ReadyList& ready);

 private:
  void run_here(Op* op, ReadyList& ready);
  FailurePtr run_alone(Op& op) noexcept;
  void move(Op& op, ReadyList& ready) noexcept;

  /// Takes out of `ready` what needs no queue: marks (completed here), turns of waiting callers.
  void settle(ReadyList& ready);

  DependencyTracker tracker_;
  EventCount news_;  // an epoch is complete; pending has fallen enough for wait_below_limits
  std::atomic<uint32_t> limit_waits_{0};
  std::atomic<uint32_t> want_alone_{0};  // ops that have been run once, and have asked to again
  std::atomic<bool> one_is_alone_{false};
};

}  // namespace lazyeng::engine
