// csrc/engine/threaded_engine.h: ready ops go to the worker pool of their queue.
//
// Locks, in the order in which they may nest: lifecycle_, pools_mutex_, a pool's lock; the
// tracker's locks never nest with these. lifecycle_ is taken by start, stop, abandon and
// set_num_workers only, which join workers under it; workers never take it. So no cycle. No code of
// the program runs under it, but for abandon's interrupt, at the end of a process.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <span>

#include "csrc/engine/tracked_engine.h"
#include "csrc/engine/worker_pool.h"

namespace lazyeng::engine {

class ThreadedEngine final : public TrackedEngine {
 public:
  explicit ThreadedEngine(unsigned workers) : num_workers_(std::max(workers, 1u)) {
    make_pool(QueueId::cpu);
  }

  ~ThreadedEngine() override {
    if (is_abandoned()) return;
    stop({});
    if (pushed_ == released_ops_) return;
    start();  // what was pushed after stop() must run: others may wait for it
    stop({});
  }

  using TrackedEngine::push;
  void push(std::span<Ref<Op>> ops) override;

  using TrackedEngine::has_idle_worker;
  bool has_idle_worker(QueueId queue) const noexcept override;
  bool is_watched() const noexcept override;
  bool is_busy(QueueId queue) const noexcept override;
  void nudge() noexcept override;
  void nudge(QueueId queue) noexcept override;
  void run_in_parts(unsigned count, const Parts::Part& part) override;
  unsigned num_free() const noexcept override;
  bool rests() const noexcept override;
  void start() override;
  WaitResult stop(const Interrupt& interrupt) override;
  WaitResult abandon(const Interrupt& interrupt) override;
  void set_num_workers(unsigned n) override;
  unsigned num_workers() const noexcept override { return num_workers_; }

 protected:
  void dispatch(ReadyList ready) override;
  bool begin_visit() override;
  void end_visit() override;
  Guest* guest() noexcept override;

 private:
  friend class Visit;

  // Queue ids beyond share the threads of the device queues before them.
  static constexpr unsigned kMaxPools = 256;
  /// Ops that can wait side by side. (More wait for each other.)
  static constexpr unsigned kMaxWaits = 256;

  static unsigned slot_of(QueueId queue) noexcept;
  bool is_running();
  unsigned threads_of(QueueId queue) const noexcept;
  WorkerPool& pool_of(QueueId queue);
  WorkerPool& make_pool(QueueId queue);
  template <class F>
  void for_each_pool(F f);
  Op* perform(Op* op, WorkerPool& pool);
  Op* keep_one(ReadyList& ready, WorkerPool& pool);

  std::mutex lifecycle_;
  std::mutex pools_mutex_;
  std::array<std::unique_ptr<WorkerPool>, kMaxPools> owned_;
  std::array<std::atomic<WorkerPool*>, kMaxPools> pools_{};
  bool running_ = false;  // written under both mutexes, read under one
  std::atomic<unsigned> num_workers_;
  std::atomic<bool> pushed_by_worker_{false};
};

}  // namespace lazyeng::engine
