// csrc/engine/tracked_engine.cpp: run, complete, release; wait.
#include "csrc/engine/tracked_engine.h"

#include <chrono>
#include <thread>
#include <utility>

namespace lazyeng::engine {

namespace {

/// Marks a place in a var's queue: its turn comes when the writes that stand before it are
/// complete.
class Mark final : public Op {
 public:
  FailurePtr run() noexcept override { return nullptr; }
};

/// One more, for a scope: other threads look at the count (seq_cst, see retire).
class Announced {
 public:
  explicit Announced(std::atomic<uint32_t>& count) : count_(count) {
    count_.fetch_add(1, std::memory_order_seq_cst);
  }
  ~Announced() { count_.fetch_sub(1, std::memory_order_relaxed); }
  Announced(const Announced&) = delete;

 private:
  std::atomic<uint32_t>& count_;
};

}  // namespace

void TrackedEngine::append(std::span<Ref<Op>> ops, ReadyList& ready) {
  uint64_t weight = 0;
  for (const Ref<Op>& op : ops) weight += op->weight;
  pushed_.fetch_add(weight, std::memory_order_relaxed);
  tracker_.push(ops, ready);
  settle(ready);
}

void TrackedEngine::push(std::span<Ref<Op>> ops) {
  ReadyList ready;
  append(ops, ready);
  if (!ready.empty()) dispatch(ready);
}

void TrackedEngine::move(Op& op, ReadyList& ready) noexcept {
  op.queue = *std::exchange(op.moves_to_, std::nullopt);
  op.has_moved_ = true;
  if (const Var* const released = std::exchange(op.released_, nullptr))
    DependencyTracker::complete_early(op, *released, ready);
  settle(ready);
}

TrackedEngine::Outcome TrackedEngine::execute(Op& op, ReadyList& ready) noexcept {
  FailurePtr failure = op.handles_failures ? nullptr : DependencyTracker::failed_input(op);
  if (failure) {
    skipped_.fetch_add(op.weight, std::memory_order_relaxed);
    if (FailurePtr carried = op.skip(failure)) failure = std::move(carried);
  } else if (op.has_moved_) {
    failure = op.run();
  } else if (op.again_ == Op::Again::no) {
    executed_.fetch_add(op.weight, std::memory_order_relaxed);
    failure = op.run();
    if (op.again_ == Op::Again::asked) {
      want_alone_.fetch_add(1, std::memory_order_relaxed);
      return Outcome::again;
    }
  } else {
    failure = run_alone(op);
  }
  if (op.moves_to_) {
    move(op, ready);
    return Outcome::moved;
  }
  op.finish(failure);
  DependencyTracker::complete(op, failure, ready);
  settle(ready);
  return Outcome::done;
}

// Ops that run now need nothing of this one, so they come to an end; except a kernel in Python that
// waits for this very op, or one that lasts. Neither may hold it up for ever, and new ops may begin
// meanwhile: "alone" is the best effort, not a promise.
FailurePtr TrackedEngine::run_alone(Op& op) noexcept {
  constexpr auto kPatience = std::chrono::seconds(10);
  constexpr auto kLookEvery = std::chrono::microseconds(100);
  op.again_ = Op::Again::granted;
  // What has begun and is not gone: these ops themselves, and those that run.
  const auto others_run = [this] {
    const uint64_t gone = released_ops_.load(std::memory_order_acquire);
    return executed_.load(std::memory_order_relaxed) + skipped_.load(std::memory_order_relaxed) >
           gone + want_alone_.load(std::memory_order_relaxed);
  };
  const auto until = std::chrono::steady_clock::now() + kPatience;
  bool alone = false;
  while (!alone && std::chrono::steady_clock::now() < until) {
    alone = !others_run() && !one_is_alone_.exchange(true, std::memory_order_acquire);
    if (!alone) std::this_thread::sleep_for(kLookEvery);
  }
  const FailurePtr failure = op.run();
  if (alone) one_is_alone_.store(false, std::memory_order_release);
  want_alone_.fetch_sub(1, std::memory_order_relaxed);
  return failure;
}

void TrackedEngine::retire(Op* op) noexcept {
  const uint32_t weight = op->weight;
  const uint64_t bytes = op->cost_bytes;
  Epoch* const epoch = op->epoch_;
  op->accesses_.clear();  // somebody may hold the op for long; the vars need not wait for that
  op->release();
  // Behind that: who lacks memory waits until the others are gone (run_alone), with what they held.
  release(weight, bytes);
  // Dekker with wait_below_limits: we release, then look for waits; it announces itself, then looks
  // at what is pending. One of us sees the other.
  if (limit_waits_.load(std::memory_order_seq_cst) != 0 && within_half_limits()) news_.notify();
  // Last, so that nothing of an op is left when wait_for_all returns.
  if (epoch->count_completion()) news_.notify();
}

void TrackedEngine::settle(ReadyList& ready) {
  ReadyList rest;
  while (!ready.empty()) {
    Op* const op = ready.pop_front();
    if (op->turn_ == Op::Turn::queue) {
      rest.push_back(op);
      continue;
    }
    // A reference of our own: a signalled caller may run and destroy the op at once.
    const Ref<Waiter> waiter = op->waiter_;
    if (op->turn_ == Op::Turn::wait) {
      DependencyTracker::complete(*op, nullptr, ready);
      op->release();
      waiter->signal();
    } else if (!waiter->signal()) {
      rest.push_back(op);  // the caller has left: its queue takes the op
    }
  }
  ready = rest;
}

WaitResult TrackedEngine::push_and_run(Ref<Op> op, const Interrupt& interrupt,
                                       const std::function<void()>& appended) {
  const Ref<Waiter> turn = make_ref<Waiter>(1);
  op->turn_ = Op::Turn::caller;
  op->waiter_ = turn;
  Op* const mine = op.get();
  ReadyList ready;
  append(std::span(&op, 1), ready);
  op = nullptr;  // the engine's reference is left
  try {
    if (appended) appended();
  } catch (...) {  // the op is appended, so somebody must run it
    if (!turn->abandon()) run_here(mine, ready);
    throw;
  }
  if (turn->wait(interrupt, guest()) == WaitResult::interrupted && turn->abandon())
    return WaitResult::interrupted;
  run_here(mine, ready);
  return WaitResult::done;
}

/// An op whose turn it is.
void TrackedEngine::run_here(Op* op, ReadyList& ready) {
  if (Guest* const self = guest()) self->leave();  // the op may take long
  while (execute(*op, ready) != Outcome::done)
    if (!ready.empty()) dispatch(std::exchange(ready, {}));
  if (!ready.empty()) dispatch(ready);
  retire(op);
}

WaitResult TrackedEngine::wait_for_var(Var& var, const Interrupt& interrupt) {
  Var* const one = &var;
  return wait_for_vars(std::span(&one, 1), interrupt);
}

WaitResult TrackedEngine::wait_for_vars(std::span<Var* const> vars, const Interrupt& interrupt) {
  // One mark per var, so that the mark in one var's queue does not hold up that var's writes until
  // another var is done.
  uint32_t pending = 0;
  for (Var* var : vars) pending += var->pending();
  if (pending == 0) return WaitResult::done;
  const Ref<Waiter> waiter = make_ref<Waiter>(static_cast<uint32_t>(vars.size()));
  ReadyList ready;
  const auto go_on = [&] {
    settle(ready);
    if (!ready.empty()) dispatch(ready);
  };
  try {
    for (Var* var : vars) {
      if (!var->pending()) {
        waiter->signal();
        continue;
      }
      const Ref<Mark> mark = make_ref<Mark>();
      mark->add_read(Ref<Var>(var));
      Op& op = *mark;
      op.waiter_ = waiter;
      tracker_.append_mark(op, ready);
    }
  } catch (...) {  // marks that were granted must go, or the next write of their var never begins
    go_on();
    throw;
  }
  go_on();
  return waiter->wait(interrupt, guest());
}

WaitResult TrackedEngine::wait_for_all(const Interrupt& interrupt) {
  const uint64_t epoch = tracker_.close_epoch();
  return news_.await([&] { return tracker_.is_complete(epoch); }, interrupt, guest());
}

WaitResult TrackedEngine::wait_below_limits(const Interrupt& interrupt) {
  if (within_half_limits()) return WaitResult::done;
  const Announced announced(limit_waits_);
  return news_.await([this] { return within_half_limits(); }, interrupt, guest());
}

}  // namespace lazyeng::engine
