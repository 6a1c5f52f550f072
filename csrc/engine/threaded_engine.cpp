// csrc/engine/threaded_engine.cpp: ready ops go to the worker pool of their queue.
//
// Locks, in the order in which they may nest: lifecycle_, pools_mutex_, a pool's lock; the
// tracker's locks never nest with these. lifecycle_ is taken by start, stop, abandon and
// set_num_workers only, which join workers under it; workers never take it. So no cycle. No code of
// the program runs under it, but for abandon's interrupt, at the end of a process.
#include <algorithm>
#include <array>

#include "csrc/engine/tracked_engine.h"
#include "csrc/engine/worker_pool.h"

namespace lazyeng::engine {

namespace {

class ThreadedEngine;
thread_local const ThreadedEngine* works_for = nullptr;  // set on engine threads

/// The calling thread as a guest of an engine's CPU pool, if it is one.
class Visit final : public Guest {
 public:
  bool run_one() override;
  bool has_one() const noexcept override;
  void arrive() override;
  void leave() override;
  void* go_away() override;
  void come_back(void* engine) override;
  std::chrono::microseconds patience() const noexcept override;
  bool sleeps(EventCount& news) override;
  void wakes(EventCount& news) override;

  void begin(ThreadedEngine& engine);
  void end();
  void depart();
  const ThreadedEngine* engine() const noexcept { return engine_; }
  bool runs_op() const noexcept { return runs_op_; }

 private:
  /// While it runs an op, or parts of one: it is no guest for what that waits for.
  class Runs {
   public:
    explicit Runs(Visit& visit) : visit_(visit) { visit_.runs_op_ = true; }
    ~Runs() { visit_.runs_op_ = false; }
    Runs(const Runs&) = delete;

   private:
    Visit& visit_;
  };

  void pass_on();
  void prepare();
  bool help();

  ThreadedEngine* engine_ = nullptr;
  Op* next_ = nullptr;     // made ready by the last one, brief; nobody else knows it
  bool arrived_ = false;   // counted by the pool
  bool prepared_ = false;  // between the owner's hooks
  bool runs_op_ = false;
};
thread_local Visit visit;

/// A worker of a pool that lends places, as a wait sees it: it runs nothing itself.
class Lender final : public Guest {
 public:
  bool run_one() override { return false; }
  bool has_one() const noexcept override { return false; }
  void arrive() override {}
  void leave() override {}
  void* go_away() override { return nullptr; }
  void come_back(void*) override {}
  std::chrono::microseconds patience() const noexcept override { return EventCount::kSpin; }
  bool sleeps(EventCount&) override {
    pool_->lend_place();
    return true;
  }
  void wakes(EventCount&) override { pool_->take_place_back(); }

  void works_in(WorkerPool& pool) { pool_ = &pool; }
  bool has_place() const noexcept { return pool_; }

 private:
  WorkerPool* pool_ = nullptr;
};
thread_local Lender lender;

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
  void end_visit() override { visit.end(); }
  Guest* guest() noexcept override {
    if (works_for == this) return lender.has_place() ? &lender : nullptr;
    return visit.engine() == this && !visit.runs_op() ? &visit : nullptr;
  }

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

unsigned ThreadedEngine::slot_of(QueueId queue) noexcept {
  constexpr unsigned kFirst = unsigned(QueueId::first_device);
  const unsigned id = unsigned(queue);
  return id < kMaxPools ? id : kFirst + (id - kFirst) % (kMaxPools - kFirst);
}

unsigned ThreadedEngine::threads_of(QueueId queue) const noexcept {
  if (queue == QueueId::cpu) return num_workers_.load();
  return queue == QueueId::waits ? kMaxWaits : 1;
}

WorkerPool& ThreadedEngine::pool_of(QueueId queue) {
  WorkerPool* pool = pools_[slot_of(queue)].load(std::memory_order_acquire);
  return pool ? *pool : make_pool(queue);
}

template <class F>
void ThreadedEngine::for_each_pool(F f) {
  for (auto& slot : pools_)
    if (WorkerPool* pool = slot.load(std::memory_order_acquire)) f(*pool);
}

WorkerPool& ThreadedEngine::make_pool(QueueId queue) {
  std::lock_guard lock(pools_mutex_);
  const unsigned slot = slot_of(queue);
  if (owned_[slot]) return *owned_[slot];
  const bool is_cpu = queue == QueueId::cpu;
  WorkerPool::Hooks hooks{
      [this](Op* op, WorkerPool& pool) { return perform(op, pool); },
      [this, queue] { return hungry_ && hungry_(queue); },
      [this](QueueId id, unsigned index) {
        works_for = this;
        if (WorkerPool& pool = pool_of(id); pool.lends()) lender.works_in(pool);
        if (thread_init_) thread_init_(id, index);
      },
      [this] {
        if (long_idle_) long_idle_();
      },
      {},
      [this] { return watch_every(); },
  };
  if (is_cpu) hooks.watch = [this](bool last) { return watch_ && watch_(last); };
  owned_[slot] =
      std::make_unique<WorkerPool>(QueueId(slot), threads_of(queue), !is_cpu, std::move(hooks));
  if (running_) owned_[slot]->start(/*now=*/false);
  pools_[slot].store(owned_[slot].get(), std::memory_order_release);
  return *owned_[slot];
}

void ThreadedEngine::push(std::span<Ref<Op>> ops) {
  TrackedEngine::push(ops);
  // After the append: a stop() that closed its epoch before it then finds the flag, set before the
  // op that pushes is complete.
  if (works_for == this || (visit.engine() == this && visit.runs_op()))
    pushed_by_worker_.store(true);
}

Op* ThreadedEngine::perform(Op* op, WorkerPool& pool) {
  ReadyList ready;
  const Outcome outcome = execute(*op, ready);
  if (outcome == Outcome::again) {
    pool.enqueue_last(op);
    return nullptr;
  }
  if (outcome == Outcome::moved) ready.push_back(op);
  Op* next = nullptr;
  if (!ready.empty()) {
    next = keep_one(ready, pool);
    if (!ready.empty()) dispatch(ready);
  }
  if (outcome == Outcome::done) retire(op);
  return next;
}

// Takes out of `ready` an op to go on with on this worker, without a round trip through the queue.
Op* ThreadedEngine::keep_one(ReadyList& ready, WorkerPool& pool) {
  ReadyList ours = ready.take(pool.queue());
  if (ours.empty()) return nullptr;
  Op* first = ours.take_first_in_order();
  if (!pool.may_continue(*first)) {
    ours.push_back(first);
    first = nullptr;
  }
  if (!ours.empty()) pool.enqueue(ours);
  return first;
}

bool ThreadedEngine::begin_visit() {
  if (visit.runs_op()) visit.depart();  // an op that waits after all: nobody shall count on us
  if (works_for || visit.engine()) return false;
  visit.begin(*this);
  return true;
}

void Visit::begin(ThreadedEngine& engine) {
  engine_ = &engine;
  arrive();
}

void Visit::end() {
  leave();
  engine_ = nullptr;
}

void Visit::arrive() {
  if (!std::exchange(arrived_, true)) engine_->pool_of(QueueId::cpu).guest_arrives();
}

void Visit::leave() {
  depart();
  if (std::exchange(prepared_, false) && engine_->guest_end_) engine_->guest_end_();
}

void* Visit::go_away() {
  leave();
  return std::exchange(engine_, nullptr);
}

void Visit::come_back(void* engine) {
  engine_ = static_cast<ThreadedEngine*>(engine);
  arrive();
}

void Visit::depart() {
  pass_on();
  if (std::exchange(arrived_, false)) engine_->pool_of(QueueId::cpu).guest_leaves();
}

void Visit::pass_on() {
  if (!next_) return;
  ReadyList one;
  one.push_back(std::exchange(next_, nullptr));
  engine_->pool_of(QueueId::cpu).enqueue(one);
}

std::chrono::microseconds Visit::patience() const noexcept {
  constexpr std::chrono::microseconds kForParts{200};
  return engine_->pool_of(QueueId::cpu).offered_lately() ? kForParts : EventCount::kSpin;
}

bool Visit::sleeps(EventCount& news) {
  if (!engine_->pool_of(QueueId::cpu).guest_sleeps(news)) return false;
  leave();
  return true;
}

void Visit::wakes(EventCount& news) {
  engine_->pool_of(QueueId::cpu).guest_wakes(news);
  arrive();
}

bool Visit::has_one() const noexcept {
  const WorkerPool& pool = engine_->pool_of(QueueId::cpu);
  return next_ || pool.offers_brief() || pool.offers_parts();
}

void Visit::prepare() {
  if (!std::exchange(prepared_, true) && engine_->guest_begin_) engine_->guest_begin_();
}

bool Visit::help() {
  WorkerPool& pool = engine_->pool_of(QueueId::cpu);
  if (!pool.offers_parts()) return false;
  prepare();
  const Runs runs(*this);
  return pool.help();
}

bool Visit::run_one() {
  WorkerPool& pool = engine_->pool_of(QueueId::cpu);
  Op* const op = next_                 ? std::exchange(next_, nullptr)
                 : pool.offers_brief() ? pool.take_brief()
                                       : nullptr;
  if (!op) return help();
  prepare();
  {
    const Runs runs(*this);
    next_ = engine_->perform(op, pool);
  }
  if (next_ && !next_->brief) pass_on();
  arrive();  // in case that the op waited
  return true;
}

void ThreadedEngine::dispatch(ReadyList ready) {
  while (!ready.empty()) {
    const QueueId queue = ready.front()->queue;
    pool_of(queue).enqueue(ready.take(queue));
  }
}

bool ThreadedEngine::has_idle_worker(QueueId queue) const noexcept {
  const WorkerPool* pool = pools_[slot_of(queue)].load(std::memory_order_acquire);
  return pool && pool->has_idle_worker();
}

bool ThreadedEngine::is_busy(QueueId queue) const noexcept {
  const WorkerPool* pool = pools_[slot_of(queue)].load(std::memory_order_acquire);
  return pool && pool->is_busy();
}

bool ThreadedEngine::is_watched() const noexcept {
  return pools_[slot_of(QueueId::cpu)].load(std::memory_order_relaxed)->is_watched();
}

void ThreadedEngine::nudge() noexcept {
  for (auto& slot : pools_) {
    WorkerPool* pool = slot.load(std::memory_order_acquire);
    if (pool && pool->nudge()) return;
  }
}

void ThreadedEngine::nudge(QueueId queue) noexcept {
  WorkerPool* pool = pools_[slot_of(queue)].load(std::memory_order_acquire);
  if (!pool || !pool->nudge()) nudge();
}

void ThreadedEngine::run_in_parts(unsigned count, const Parts::Part& part) {
  pool_of(QueueId::cpu).run_in_parts(count, part);
}

unsigned ThreadedEngine::num_free() const noexcept {
  return pools_[slot_of(QueueId::cpu)].load(std::memory_order_relaxed)->num_free();
}

bool ThreadedEngine::rests() const noexcept {
  return pools_[slot_of(QueueId::cpu)].load(std::memory_order_relaxed)->rests();
}

bool ThreadedEngine::is_running() {
  std::lock_guard lock(pools_mutex_);
  return running_;
}

void ThreadedEngine::start() {
  std::lock_guard lifecycle(lifecycle_);
  std::lock_guard lock(pools_mutex_);
  if (running_ || is_abandoned()) return;
  running_ = true;
  for (auto& pool : owned_)
    if (pool) pool->start(/*now=*/pool->queue() == QueueId::cpu);
}

WaitResult ThreadedEngine::stop(const Interrupt& interrupt) {
  // Rounds: what our own threads push while we wait is finished too. What other threads push does
  // not extend the stop, or it might never end. (Without lifecycle_: a signal handler that the
  // interrupt runs may call set_num_workers.)
  do {
    if (!is_running()) return WaitResult::done;
    pushed_by_worker_.store(false);
    if (wait_for_all(interrupt) == WaitResult::interrupted) return WaitResult::interrupted;
  } while (pushed_by_worker_.load());
  std::lock_guard lifecycle(lifecycle_);
  {
    std::lock_guard lock(pools_mutex_);
    if (!running_) return WaitResult::done;
    running_ = false;  // from now on new pools do not start
  }
  for_each_pool([](WorkerPool& pool) { pool.stop(); });
  return WaitResult::done;
}

WaitResult ThreadedEngine::abandon(const Interrupt& interrupt) {
  constexpr auto kLookEvery = std::chrono::milliseconds(5);
  std::lock_guard lifecycle(lifecycle_);
  abandoned_.store(true, std::memory_order_relaxed);
  {
    std::lock_guard lock(pools_mutex_);
    running_ = false;
  }
  for_each_pool([](WorkerPool& pool) { pool.close(); });
  for (;;) {
    bool over = true;
    for_each_pool([&](WorkerPool& pool) { over &= !pool.has_threads(); });
    if (over) break;
    if (interrupt && interrupt()) return WaitResult::interrupted;
    std::this_thread::sleep_for(kLookEvery);
  }
  for_each_pool([](WorkerPool& pool) { pool.stop(); });
  return WaitResult::done;
}

void ThreadedEngine::set_num_workers(unsigned n) {
  std::lock_guard lifecycle(lifecycle_);
  num_workers_ = std::max(n, 1u);
  WorkerPool& cpu = pool_of(QueueId::cpu);
  cpu.stop();
  cpu.set_threads(num_workers_);
  if (running_) cpu.start(/*now=*/true);
}

}  // namespace

std::unique_ptr<Engine> make_threaded_engine(unsigned workers) {
  return std::make_unique<ThreadedEngine>(workers);
}

}  // namespace lazyeng::engine
