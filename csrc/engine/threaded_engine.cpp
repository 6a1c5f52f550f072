// csrc/engine/threaded_engine.cpp: pools, made as their queues are used, and what they run.
#include "csrc/engine/threaded_engine.h"

#include "csrc/engine/visit.h"

namespace lazyeng::engine {

namespace {
thread_local const ThreadedEngine* works_for = nullptr;  // set on engine threads
}  // namespace

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
        if (WorkerPool& pool = pool_of(id); pool.lends()) this_lender().works_in(pool);
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
  const Visit& visit = this_visit();
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

Guest* ThreadedEngine::guest() noexcept {
  if (works_for == this) return this_lender().has_place() ? &this_lender() : nullptr;
  Visit& visit = this_visit();
  return visit.engine() == this && !visit.runs_op() ? &visit : nullptr;
}

bool ThreadedEngine::begin_visit() {
  Visit& visit = this_visit();
  if (visit.runs_op()) visit.depart();  // an op that waits after all: nobody shall count on us
  if (works_for || visit.engine()) return false;
  visit.begin(*this);
  return true;
}

void ThreadedEngine::end_visit() { this_visit().end(); }

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

std::unique_ptr<Engine> make_threaded_engine(unsigned workers) {
  return std::make_unique<ThreadedEngine>(workers);
}

}  // namespace lazyeng::engine
