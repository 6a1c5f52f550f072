// csrc/engine/naive_engine.cpp: every op runs at push, on the calling thread.
//
// An op may find an access taken: by an op that another thread is running, or by the op from within
// which it is pushed. It is then left to the thread that completes that one. Pushing never waits,
// so threads that hold a lock of their own while they push (the GIL) cannot deadlock.

#include "csrc/engine/tracked_engine.h"

namespace lazyeng::engine {

namespace {

class NaiveEngine final : public TrackedEngine {
 public:
  ~NaiveEngine() override { start(); }  // what was pushed after stop() must run

  using TrackedEngine::push;
  void push(std::span<Ref<Op>> ops) override {
    // One at a time: the second one is appended when the first has run, and the order is the
    // program's whatever becomes ready in between.
    for (size_t i = 0; i < ops.size(); ++i) TrackedEngine::push(ops.subspan(i, 1));
  }

  using TrackedEngine::has_idle_worker;
  bool has_idle_worker(QueueId) const noexcept override { return true; }  // the caller itself
  using TrackedEngine::nudge;
  void nudge() noexcept override {}
  bool is_watched() const noexcept override { return false; }

  void start() override {
    ReadyList held;
    {
      std::lock_guard lock(mutex_);
      stopped_ = false;
      while (!held_.empty()) held.push_back(held_.pop());
    }
    dispatch(held);
  }

  WaitResult stop(const Interrupt& interrupt) override {
    {
      std::lock_guard lock(mutex_);
      if (stopped_) return WaitResult::done;
    }
    if (wait_for_all(interrupt) == WaitResult::interrupted) return WaitResult::interrupted;
    std::lock_guard lock(mutex_);
    stopped_ = true;
    return WaitResult::done;
  }

  WaitResult abandon(const Interrupt& interrupt) override {
    abandoned_.store(true, std::memory_order_relaxed);
    return wait_for_all(interrupt);
  }

  void set_num_workers(unsigned) override {}
  unsigned num_workers() const noexcept override { return 1; }

 protected:
  void dispatch(ReadyList ready) override {
    while (!ready.empty() && !hold(ready)) {
      Op* const op = ready.pop_front();
      // It appends to the list: a chain of completions is a loop, no recursion.
      while (execute(*op, ready) != Outcome::done) {
      }
      retire(op);
    }
  }

 private:
  /// Keeps the ops for start() if the engine is stopped.
  bool hold(ReadyList& ready) {
    std::lock_guard lock(mutex_);
    if (!stopped_) return false;
    while (!ready.empty()) held_.push(ready.pop_front());
    return true;
  }

  std::mutex mutex_;
  bool stopped_ = false;
  ReadyQueue held_;
};

}  // namespace

std::unique_ptr<Engine> make_naive_engine() { return std::make_unique<NaiveEngine>(); }

}  // namespace lazyeng::engine
