// csrc/engine/worker_pool.h: the threads of one queue and the ready ops that they share.
//
// Invariants (kept under mutex_):
//   P1  if ops are ready and a worker is idle, then a woken worker is on its way to them, or they
//       are few, the first is brief, and a guest is here;
//   P2  a worker announces itself idle only while nothing is ready and no parts are open;
//   P3  a guest sleeps only while no parts are open, or as many others as can take one were woken.
// No lost wakeup: an op is enqueued under the lock. Is a worker idle then, one is woken (P1), and
// it takes an op and wakes the next if more are left; is none idle, each worker looks at the queue
// before it announces itself (P2).
//
// Wake-ups cost: the enqueuing thread wakes at most one worker, and none while one is on its way;
// waking more is left to the woken. The worker that went idle first spins for a moment before it
// sleeps (at most one spins at a time), and is preferred: it needs no system call.
//
// Guests (guest.h) look at the queue before they leave, and take its first op if that is brief. If
// it is not, or when the last guest leaves, P1 asks for a worker: so each of these steps wakes one.
//
// Parts (parts.h) are taken by threads that find no op ready. The thread that offers some wakes as
// many as can take one: idle workers, and guests that sleep. (P2, P3: a thread that is about to go
// idle or to sleep looks for parts under the same lock.) A woken thread that finds all parts taken
// goes back to sleep.
//
// Places: a pool that lends them (that of QueueId::python) has at most threads_ workers at work,
// but an op may wait, in its run, for one behind it. While it sleeps its worker lends its place, to
// one that is started for that if none is idle. Afterwards more are at work for a moment; who is
// done first finds no place and goes idle. In P1 and P2 ops are ready only while a place is free:
// who gives one up looks for ops before it goes idle, or wakes a worker.
//
// Thread safety: any thread, but start, stop and set_threads only one at a time and never from a
// worker. No lock is held while a hook runs.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <semaphore>
#include <thread>
#include <vector>

#include "csrc/engine/parts.h"
#include "csrc/engine/ready_queue.h"

namespace lazyeng::engine {

class WorkerPool {
 public:
  /// Longer than most gaps within a step of a program, shorter than anybody would notice.
  static constexpr std::chrono::milliseconds kLongIdle{2};

  struct Hooks {
    /// Runs the op. Returns one to continue with, of the same queue, or null.
    std::function<Op*(Op*, WorkerPool&)> perform;
    /// Asked when there is nothing to run. True if there may be something now.
    std::function<bool()> hungry;
    /// Called on each thread before anything else.
    std::function<void(QueueId, unsigned)> thread_init;
    /// Called on a thread that has had nothing to do for kLongIdle, once, until it has worked
    /// again.
    std::function<void()> long_idle;
    /// Asked by one idle worker every so often while it returns true, and with true when it has to
    /// stop; empty: never.
    std::function<bool(bool last)> watch;
    std::function<std::chrono::microseconds()> watch_every;
  };

  /// With `strict` the priority and push order of ready ops is kept exactly; otherwise a worker
  /// prefers an op that it has just made ready to earlier ones of the same priority (warm caches).
  WorkerPool(QueueId queue, unsigned threads, bool strict, Hooks hooks);
  ~WorkerPool();

  QueueId queue() const noexcept { return queue_; }

  /// Queues the ops. Starts the threads if the pool may run and has none yet.
  void enqueue(ReadyList ops);
  /// Queues an op that has had its turn behind all others.
  void enqueue_last(Op* op);
  /// Whether a worker may go on with the op without asking the queue.
  bool may_continue(const Op& op) const noexcept;

  /// For guests: a thread is one between these two.
  void guest_arrives();
  void guest_leaves();
  /// The first ready op if that is brief, else null.
  Op* take_brief();
  /// Whether take_brief() would find one. A hint.
  bool offers_brief() const noexcept { return offers_brief_.load(std::memory_order_relaxed); }

  /// Calls the parts here, and on as many threads as have nothing else to do. Those of one owner at
  /// a time: if others are open, all run here.
  void run_in_parts(unsigned count, const Parts::Part& part);
  /// Takes parts that are offered. False if there were none.
  bool help();
  /// Whether help() would find some. A hint.
  bool offers_parts() const noexcept { return offers_parts_.load(std::memory_order_relaxed); }
  /// Whether some were offered a moment ago.
  bool offered_lately() const noexcept;
  /// How many threads have nothing to do: idle workers, guests (asleep or not). A hint.
  unsigned num_free() const noexcept;
  /// A guest that sleeps is woken by `news` when parts are offered. False if some are open.
  bool guest_sleeps(EventCount& news);
  void guest_wakes(EventCount& news);

  /// Whether a worker's op may wait for others of this queue.
  bool lends() const noexcept { return queue_ == QueueId::python; }
  /// For a worker whose op is going to sleep, and has woken up.
  void lend_place();
  void take_place_back();

  bool has_idle_worker() const noexcept;
  /// Whether it has threads and none is idle.
  bool is_busy() const noexcept {
    return running_.load(std::memory_order_relaxed) != 0 && !has_idle_worker();
  }
  /// Whether no worker has an op, or is woken for one. A hint. (One that is woken to look at the
  /// window, as after a pause, is not idle either.)
  bool rests() const noexcept {
    return at_work_.load(std::memory_order_relaxed) == 0 &&
           on_their_way_.load(std::memory_order_relaxed) == 0;
  }
  /// Whether an idle worker calls the hook watch now.
  bool is_watched() const noexcept { return watched_.load(std::memory_order_seq_cst); }
  /// Wakes an idle worker to call hungry. False if there is none.
  bool nudge() noexcept;

  /// Lets threads run; they start at once if something is queued or `now`.
  void start(bool now);
  /// Ends the threads after the op at hand. What is queued stays.
  void stop();
  /// The same, without waiting for them.
  void close();
  /// Whether some have not ended.
  bool has_threads() const noexcept { return alive_.load(std::memory_order_acquire) != 0; }
  /// Only while stopped.
  void set_threads(unsigned n) { threads_ = n; }

 private:
  enum class Signal : int { none, parked, work, hungry };

  struct Worker {
    unsigned index = 0;
    std::thread thread;
    std::atomic<Signal> signal{Signal::none};
    std::binary_semaphore unparked{0};  // released once for each signal that replaced `parked`
    bool on_its_way = false;            // counted in on_their_way_; guarded by mutex_
    bool at_work = false;               // counted in at_work_; the same
  };

  void start_threads();
  void start_threads_for_ready();
  void start_in_lent_place();
  Worker& start_thread();
  bool may_take() const noexcept { return !ready_.empty() && (!lends() || at_work_ < threads_); }
  /// Threads are started as ops come, so that none waits for another. (The ops may wait long.)
  bool grows() const noexcept { return queue_ == QueueId::waits; }
  void work(Worker& self);
  Op* next_op(Worker& self);
  bool take(Worker& self, Op*& op);
  bool announce_idle(Worker& self);
  Signal withdraw(Worker& self);
  Signal wait_for_signal(Worker& self);
  void park(Worker& self);
  enum class Watched : uint8_t { no, until_unparked, until_quiet };
  Watched watch(Worker& self);
  void leave_watching_to_others();
  void ready_changed();
  void guests_changed();
  bool left_to_guests() const noexcept;
  Worker* wake_for_work();
  bool offer(const Ref<Parts>& parts, unsigned helpers);
  void withdraw(const Parts& parts);
  Ref<Parts> open_parts();
  Worker* choose_idle(Signal signal);
  static void unpark(Worker* worker);

  const QueueId queue_;
  unsigned threads_;
  const bool strict_;
  const Hooks hooks_;

  std::mutex mutex_;
  ReadyQueue ready_;
  std::vector<Worker*> idle_;
  Worker* spinner_ = nullptr;  // the idle worker that is not asleep
  unsigned lent_ = 0;
  unsigned guests_ = 0;
  std::vector<EventCount*> asleep_;  // of guests, each until it is woken for parts or by itself
  Ref<Parts> parts_;
  // Never freed while the pool lives: whoever wakes a worker touches it without the lock.
  std::vector<std::unique_ptr<Worker>> workers_;

  // Written under mutex_, read anywhere.
  std::atomic<bool> open_{false};          // may run
  std::atomic<unsigned> running_{0};       // workers that have a thread
  std::atomic<unsigned> alive_{0};         // of these, threads that have not ended
  std::atomic<unsigned> on_their_way_{0};  // woken for work, not yet at the queue
  std::atomic<unsigned> at_work_{0};       // with an op, and not lending their places
  std::atomic<uint64_t> first_{ReadyQueue::kNone};
  std::atomic<bool> offers_brief_{false};
  std::atomic<bool> offers_parts_{false};
  std::atomic<std::chrono::steady_clock::time_point> last_offer_{
      std::chrono::steady_clock::time_point::min()};
  std::atomic<unsigned> num_guests_{0};  // asleep or not
  std::atomic<bool> watched_{false};
  alignas(64) mutable std::atomic<unsigned> num_idle_{0};
};

}  // namespace lazyeng::engine
