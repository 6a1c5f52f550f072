// csrc/engine/engine.h: what the recorder sees of an engine: push, wait, bounds, start and stop.
//
// Thread safety: every function may be called from any thread. wait functions must not be called
// from within an op on a queue that the waited-for op needs. Waits poll `Interrupt` so that the
// caller can leave (Ctrl-C); leaving a wait changes nothing in the engine. A wait from within an op
// on QueueId::python is safe: others of that queue run meanwhile.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "csrc/engine/guest.h"
#include "csrc/engine/op.h"
#include "csrc/engine/parts.h"
#include "csrc/engine/wait.h"

namespace lazyeng::engine {

struct Limits {
  uint64_t max_pending_ops = 65536;
  uint64_t max_pending_bytes = uint64_t{1} << 30;
};

struct Counters {
  uint64_t pushed = 0;
  uint64_t executed = 0;       ///< run() was called
  uint64_t skipped = 0;        ///< skip() was called
  uint64_t pending_ops = 0;    ///< admitted and not complete
  uint64_t pending_bytes = 0;  ///< sum of their cost_bytes
};

class Engine {
 public:
  virtual ~Engine() = default;

  /// Appends each op to its vars, atomically and in the order given, and schedules what is ready.
  /// The engine keeps a reference to each op until it is complete.
  virtual void push(std::span<Ref<Op>> ops) = 0;
  void push(Ref<Op> op) { push(std::span<Ref<Op>>(&op, 1)); }

  /// Appends the op at once, then waits for its turn and runs it on the calling thread.
  /// If interrupted while it waits for its turn, the op still runs, later, on its queue.
  /// `appended` is called right after the append (for a caller that orders pushes by a lock of its
  /// own and wants to let go of it before the wait).
  virtual WaitResult push_and_run(Ref<Op> op, const Interrupt& interrupt,
                                  const std::function<void()>& appended = {}) = 0;

  /// For an op that its caller has run and that is never pushed: it failed, so the vars that it
  /// writes get that failure. (No op had claimed them when it began; one of another thread may have
  /// since, and sees either version.)
  static void fail_unpushed(const Op& op, const FailurePtr& failure) noexcept;

  /// Returns when every write appended to the var before the call is complete.
  /// Does not wait for reads, except those that such a write itself waits for.
  virtual WaitResult wait_for_var(Var& var, const Interrupt& interrupt) = 0;
  /// Returns when every write appended to any of the vars before the call is complete.
  virtual WaitResult wait_for_vars(std::span<Var* const> vars, const Interrupt& interrupt) = 0;
  /// Returns when every op pushed before the call is complete.
  virtual WaitResult wait_for_all(const Interrupt& interrupt) = 0;

  // Run-ahead. The recorder admits an op when it records it (which may be well before it is
  // pushed); the engine releases it when the op is complete. An op pushed without having been
  // admitted must not be counted: admit() every op exactly once before push.
  void admit(uint64_t bytes) noexcept;
  bool above_limits() const noexcept;
  /// The cost_bytes of ops that were admitted, and are not pushed yet, have been lowered by so
  /// much.
  void forgo(uint64_t bytes) noexcept { release(0, bytes); }
  /// Waits until pending ops and bytes are at most half of the limits.
  virtual WaitResult wait_below_limits(const Interrupt& interrupt) = 0;
  void set_limits(Limits limits) noexcept;
  Limits limits() const noexcept;

  /// Called by an idle worker of any queue, which it names, without any lock, when it finds nothing
  /// to run: the owner may push more (the recorder's window). Returns true if it did. Set before
  /// start(). Never throws.
  void set_hungry(std::function<bool(QueueId)> hungry) { hungry_ = std::move(hungry); }
  /// Called by an idle worker of the CPU pool about every watch_every() for as long as it returns
  /// true, and for about 2 ms after that: the owner holds ops back, and pushes them when no more
  /// come. With `last` it pushes nothing, and tells whether it holds some: the worker has something
  /// else to do. Without any lock. Set before start(). Never throws.
  void set_watch(std::function<bool(bool last)> watch) { watch_ = std::move(watch); }
  /// Much longer than recording an op takes, much shorter than what holding a chain of large ops
  /// back saves (benchmarks/windows.py). Any time.
  std::chrono::microseconds watch_every() const noexcept {
    return watch_every_.load(std::memory_order_relaxed);
  }
  void set_watch_every(std::chrono::microseconds every) noexcept {
    watch_every_.store(every, std::memory_order_relaxed);
  }
  /// Whether a worker does that now. If not, a nudge makes one begin. A hint, but not a lossy one:
  /// a worker that stops calls watch() once more, and sees what was held back before this call. If
  /// there is something it goes on, or has another idle worker begin. (Without another one, it
  /// looks for work of the owner, and watches again, as soon as it is idle.)
  virtual bool is_watched() const noexcept = 0;
  /// True if some worker of the queue would start at once on a pushed op; false if no thread serves
  /// it now. A hint, but not a lossy one: a worker that the answer misses will call hungry() after
  /// it, and sees what the asking thread had put into its window before it asked.
  bool has_idle_worker() const noexcept { return has_idle_worker(QueueId::cpu); }
  virtual bool has_idle_worker(QueueId queue) const noexcept = 0;
  /// Whether the queue has threads and none of them is idle: the first that is will call hungry().
  /// A hint, but not a lossy one, as has_idle_worker(). (Where threads end, with stop() or in a
  /// fork, those of the CPU pool call it when they start again.)
  virtual bool is_busy(QueueId /*queue*/) const noexcept { return false; }
  /// Wakes an idle worker (of the CPU pool if it has one) so that it calls hungry(). Cheap when
  /// none sleeps.
  virtual void nudge() noexcept = 0;
  /// The same, of this queue if it has an idle worker.
  virtual void nudge(QueueId /*queue*/) noexcept { nudge(); }

  /// From within an op: calls part(0) to part(count - 1), each once, here and on threads that have
  /// nothing else to do (parts.h). Returns when all have been called.
  virtual void run_in_parts(unsigned count, const Parts::Part& part) {
    for (unsigned i = 0; i < count; ++i) part(i);
  }
  /// How many threads have nothing to do now: idle workers of the CPU pool, and threads that wait.
  /// A hint.
  virtual unsigned num_free() const noexcept { return 0; }
  /// Whether no worker of the CPU pool runs an op. A hint.
  virtual bool rests() const noexcept { return true; }

  /// Threads. stop() finishes every pushed op (also what these ops push), then joins the threads;
  /// pushes after it run only once start() is called again. Both are idempotent, neither may be
  /// called from within an op. Before fork() the parent calls stop(); then parent and child each
  /// call start() when they next need the engine, and run what was pushed in between. No other
  /// thread may be within a call of the engine at the moment of the fork. If stop() is interrupted
  /// while it waits for ops, everything runs on.
  virtual void start() = 0;
  virtual WaitResult stop(const Interrupt& interrupt = {}) = 0;
  /// At the end of a process, for good: no op begins any more, except on threads that have pushed
  /// it to run it themselves. Returns once those that run are over, or sooner if interrupted, which
  /// is polled every few milliseconds.
  virtual WaitResult abandon(const Interrupt& interrupt) = 0;
  bool is_abandoned() const noexcept { return abandoned_.load(std::memory_order_relaxed); }
  /// At least 1. While running: threads finish the op at hand and are replaced. Not within an op.
  virtual void set_num_workers(unsigned n) = 0;
  virtual unsigned num_workers() const noexcept = 0;

  /// Called on each engine thread at its start, with its queue and its index (to exclude dispatch
  /// keys). Set before start(). Never throws.
  void set_thread_init(std::function<void(QueueId, unsigned)> init) {
    thread_init_ = std::move(init);
  }

  /// Called on an engine thread that has had nothing to do for some milliseconds (let go of what it
  /// keeps for speed). Set before start(). Never throws.
  void set_long_idle(std::function<void()> long_idle) { long_idle_ = std::move(long_idle); }

  /// Called on a guest (guest.h): `begin` before it runs ops, so that it is as an engine thread is,
  /// and `end` before it sleeps, leaves or calls back its owner. Set before start(). Never throw.
  void set_guest_hooks(std::function<void()> begin, std::function<void()> end) {
    guest_begin_ = std::move(begin);
    guest_end_ = std::move(end);
  }

  Counters counters() const noexcept;

 protected:
  std::function<bool(QueueId)> hungry_;
  std::function<bool(bool)> watch_;
  std::atomic<std::chrono::microseconds> watch_every_{std::chrono::microseconds(50)};
  std::function<void(QueueId, unsigned)> thread_init_;
  std::function<void()> long_idle_;
  std::function<void()> guest_begin_;
  std::function<void()> guest_end_;
  std::atomic<bool> abandoned_{false};

  friend class GuestScope;
  /// The calling thread becomes a guest. False if it cannot, or is one already.
  virtual bool begin_visit() { return false; }
  virtual void end_visit() {}

  /// Ops are complete: takes back what admit() counted.
  void release(uint64_t ops, uint64_t bytes) noexcept;
  bool within_half_limits() const noexcept;

  // Pending is admitted minus released: recording threads and workers write different cache lines.
  alignas(64) std::atomic<uint64_t> admitted_ops_{0};
  std::atomic<uint64_t> admitted_bytes_{0};
  std::atomic<uint64_t> pushed_{0};
  alignas(64) std::atomic<uint64_t> released_ops_{0};
  std::atomic<uint64_t> released_bytes_{0};
  std::atomic<uint64_t> executed_{0}, skipped_{0};
  alignas(64) std::atomic<uint64_t> max_ops_{Limits{}.max_pending_ops};
  std::atomic<uint64_t> max_bytes_{Limits{}.max_pending_bytes};

 private:
  struct Pending {
    uint64_t ops, bytes;
  };
  Pending pending() const noexcept;
};

/// Runs every op on the calling thread, at push; one that another thread's running op keeps from
/// its turn runs right after that one, on that thread. Always started, unless stopped.
std::unique_ptr<Engine> make_naive_engine();
/// Runs ops on `workers` pool threads, plus those of the other queues (worker_pool.h), which start
/// when first used; from start() on.
std::unique_ptr<Engine> make_threaded_engine(unsigned workers);

}  // namespace lazyeng::engine
