// csrc/engine/worker_pool.cpp: taking ops, going idle, waking up.
#include "csrc/engine/worker_pool.h"

#include <pthread.h>

#include <algorithm>
#include <string>
#include <system_error>

#include "csrc/engine/pause.h"

namespace lazyeng::engine {

namespace {

constexpr auto kSpin = std::chrono::microseconds(15);

/// Brief ops that a guest runs in less time than a worker takes to wake up.
constexpr size_t kLeftToGuests = 4;

/// Of a pool that lends places.
constexpr unsigned kMostThreads = 256;

void name_thread(QueueId queue, unsigned index) {
  std::string name = "lazyeng-";
  if (queue == QueueId::cpu)
    name += "cpu-" + std::to_string(index);
  else if (queue == QueueId::python)
    name += "python";
  else if (queue == QueueId::collectives)
    name += "coll";
  else if (queue == QueueId::waits)
    name += "wait-" + std::to_string(index);
  else
    name += "dev-" + std::to_string(unsigned(queue) - unsigned(QueueId::first_device));
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
}

}  // namespace

WorkerPool::WorkerPool(QueueId queue, unsigned threads, bool strict, Hooks hooks)
    : queue_(queue), threads_(threads), strict_(strict), hooks_(std::move(hooks)) {}

WorkerPool::~WorkerPool() { stop(); }

void WorkerPool::enqueue(ReadyList ops) {
  Worker* woken;
  {
    std::lock_guard lock(mutex_);
    while (!ops.empty()) ready_.push(ops.pop_front());
    ready_changed();
    if (open_.load(std::memory_order_relaxed) && (running_ == 0 || grows())) start_threads();
    start_in_lent_place();
    woken = wake_for_work();
  }
  unpark(woken);
}

void WorkerPool::enqueue_last(Op* op) {
  op->order_ = ReadyQueue::kNone - 1;
  ReadyList one;
  one.push_back(op);
  enqueue(one);
}

bool WorkerPool::may_continue(const Op& op) const noexcept {
  if (!open_.load(std::memory_order_relaxed)) return false;
  const uint64_t first = first_.load(std::memory_order_relaxed);
  return strict_ ? op.order_ < first : op.order_ >> 48 <= first >> 48;
}

void WorkerPool::start(bool now) {
  std::lock_guard lock(mutex_);
  open_.store(true, std::memory_order_relaxed);
  if ((now || !ready_.empty()) && running_ == 0) start_threads();
}

// Where the system has no thread left, those that there are do the work. Throws if there is none;
// what comes next tries again.
void WorkerPool::start_threads() {
  try {
    if (grows())
      start_threads_for_ready();
    else
      while (running_ < threads_) start_thread();
  } catch (const std::system_error&) {
    if (running_ == 0) throw;
  }
}

// As many as there are ops that nobody else will take at once.
void WorkerPool::start_threads_for_ready() {
  while (running_ < threads_ && ready_.size() > idle_.size() + on_their_way_) {
    Worker& worker = start_thread();
    worker.on_its_way = true;
    ++on_their_way_;
  }
}

// All that there are may wait for what is ready. (Without a thread for it, it waits.)
void WorkerPool::start_in_lent_place() {
  if (!lends() || !open_.load(std::memory_order_relaxed) || !may_take()) return;
  if (running_ != lent_ || running_ >= kMostThreads) return;
  try {
    start_thread().on_its_way = true;
    ++on_their_way_;
  } catch (const std::system_error&) {
  }
}

void WorkerPool::lend_place() {
  Worker* woken;
  {
    std::lock_guard lock(mutex_);
    --at_work_;
    ++lent_;
    start_in_lent_place();
    woken = wake_for_work();
  }
  unpark(woken);
}

void WorkerPool::take_place_back() {
  std::lock_guard lock(mutex_);
  --lent_;
  ++at_work_;
}

WorkerPool::Worker& WorkerPool::start_thread() {
  if (workers_.size() == running_) {
    workers_.push_back(std::make_unique<Worker>());
    workers_.back()->index = running_;
  }
  Worker& worker = *workers_[running_];
  worker.thread = std::thread([this, &worker] { work(worker); });
  ++running_;
  ++alive_;
  return worker;
}

void WorkerPool::close() {
  std::vector<Worker*> woken;
  {
    std::lock_guard lock(mutex_);
    open_.store(false, std::memory_order_relaxed);
    while (!idle_.empty()) woken.push_back(choose_idle(Signal::work));
  }
  for (Worker* worker : woken) unpark(worker);
}

void WorkerPool::stop() {
  close();
  const unsigned running = running_;  // (closed, it starts no more)
  for (unsigned i = 0; i < running; ++i) workers_[i]->thread.join();
  std::lock_guard lock(mutex_);
  running_ = 0;
}

void WorkerPool::work(Worker& self) {
  name_thread(queue_, self.index);
  hooks_.thread_init(queue_, self.index);
  while (Op* op = next_op(self))
    while (op) op = hooks_.perform(op, *this);
  alive_.fetch_sub(1, std::memory_order_release);
}

// Returns null when the pool has stopped.
Op* WorkerPool::next_op(Worker& self) {
  for (;;) {
    Op* op = nullptr;
    if (take(self, op)) return op;
    if (help() || hooks_.hungry()) continue;
    if (!announce_idle(self)) continue;
    // Again, now that we are known to be idle: has_idle_worker() explains why.
    const Signal signal = hooks_.hungry() ? withdraw(self) : wait_for_signal(self);
    if (signal == Signal::hungry) hooks_.hungry();  // before anything else: the nudge was for this
  }
}

// True if the worker need not go idle: it has an op, or null because the pool has stopped.
bool WorkerPool::take(Worker& self, Op*& op) {
  Worker* woken;
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(self.on_its_way, false)) --on_their_way_;
    if (std::exchange(self.at_work, false)) --at_work_;
    if (!open_.load(std::memory_order_relaxed)) return true;
    if (!may_take()) return false;
    op = ready_.pop();
    self.at_work = true;
    ++at_work_;
    ready_changed();
    woken = wake_for_work();
  }
  unpark(woken);
  return true;
}

void WorkerPool::guest_arrives() {
  std::lock_guard lock(mutex_);
  ++guests_;
  guests_changed();
}

void WorkerPool::guest_leaves() {
  Worker* woken;
  {
    std::lock_guard lock(mutex_);
    --guests_;
    guests_changed();
    woken = wake_for_work();
  }
  unpark(woken);
}

Op* WorkerPool::take_brief() {
  Op* op;
  Worker* woken;
  {
    std::lock_guard lock(mutex_);
    if (!open_.load(std::memory_order_relaxed) || ready_.empty() || !ready_.front().brief)
      return nullptr;
    op = ready_.pop();
    ready_changed();
    woken = wake_for_work();
  }
  unpark(woken);
  return op;
}

void WorkerPool::run_in_parts(unsigned count, const Parts::Part& part) {
  const Ref<Parts> parts = make_ref<Parts>(count, part);
  const bool offered = offer(parts, count - 1);
  parts->finish();
  if (offered) withdraw(*parts);
}

// Keeps P2 and P3: from now on nobody goes idle, and of those who are, `helpers` are woken.
bool WorkerPool::offer(const Ref<Parts>& parts, unsigned helpers) {
  std::vector<Worker*> woken;
  {
    std::lock_guard lock(mutex_);
    if (parts_ && parts_->open()) return false;
    parts_ = parts;
    offers_parts_.store(true, std::memory_order_relaxed);
    last_offer_.store(std::chrono::steady_clock::now(), std::memory_order_relaxed);
    for (; helpers > 0 && !idle_.empty(); --helpers)
      if (Worker* worker = choose_idle(Signal::hungry)) woken.push_back(worker);
    helpers -= std::min(helpers, guests_);  // they look
    for (; helpers > 0 && !asleep_.empty(); --helpers) {
      asleep_.back()->notify();  // (it lives: guest_wakes takes the lock first)
      asleep_.pop_back();
    }
    guests_changed();
  }
  for (Worker* worker : woken) unpark(worker);
  return true;
}

void WorkerPool::withdraw(const Parts& parts) {
  std::lock_guard lock(mutex_);
  if (parts_.get() != &parts) return;
  parts_ = nullptr;
  offers_parts_.store(false, std::memory_order_relaxed);
}

Ref<Parts> WorkerPool::open_parts() {
  std::lock_guard lock(mutex_);
  if (parts_ && parts_->open()) return parts_;
  offers_parts_.store(false, std::memory_order_relaxed);
  return nullptr;
}

bool WorkerPool::help() {
  if (!offers_parts()) return false;
  const Ref<Parts> parts = open_parts();
  return parts && parts->help();
}

bool WorkerPool::offered_lately() const noexcept {
  constexpr std::chrono::microseconds kLately{300};
  const auto last = last_offer_.load(std::memory_order_relaxed);
  return last != std::chrono::steady_clock::time_point::min() &&
         std::chrono::steady_clock::now() - last < kLately;
}

unsigned WorkerPool::num_free() const noexcept {
  return num_idle_.load(std::memory_order_relaxed) + num_guests_.load(std::memory_order_relaxed);
}

bool WorkerPool::guest_sleeps(EventCount& news) {
  std::lock_guard lock(mutex_);
  if (parts_ && parts_->open()) return false;  // P3
  asleep_.push_back(&news);
  return true;
}

void WorkerPool::guest_wakes(EventCount& news) {
  std::lock_guard lock(mutex_);
  const auto found = std::find(asleep_.begin(), asleep_.end(), &news);
  if (found != asleep_.end()) asleep_.erase(found);
  guests_changed();
}

bool WorkerPool::announce_idle(Worker& self) {
  std::lock_guard lock(mutex_);
  if (may_take() || (parts_ && parts_->open()) || !open_.load(std::memory_order_relaxed))
    return false;  // P2
  self.signal.store(Signal::none, std::memory_order_relaxed);
  idle_.push_back(&self);
  if (!spinner_) spinner_ = &self;
  num_idle_.fetch_add(1, std::memory_order_acq_rel);
  return true;
}

// The worker has something to do. Returns what it was chosen for meanwhile, if it was; for work,
// on_its_way stays for take().
WorkerPool::Signal WorkerPool::withdraw(Worker& self) {
  std::lock_guard lock(mutex_);
  if (spinner_ == &self) spinner_ = nullptr;
  if (std::erase(idle_, &self)) num_idle_.fetch_sub(1, std::memory_order_relaxed);
  return self.signal.load(std::memory_order_relaxed);
}

WorkerPool::Signal WorkerPool::wait_for_signal(Worker& self) {
  bool spins;
  {
    std::lock_guard lock(mutex_);
    spins = spinner_ == &self;
  }
  if (spins) {
    spin_until([&] { return self.signal.load(std::memory_order_acquire) != Signal::none; }, kSpin);
    std::lock_guard lock(mutex_);
    if (spinner_ == &self) spinner_ = nullptr;
  }
  Signal expected = Signal::none;
  if (self.signal.compare_exchange_strong(expected, Signal::parked, std::memory_order_acq_rel))
    park(self);
  else if (expected == Signal::work)
    leave_watching_to_others();  // it may have been nudged to watch, and has not begun to
  return self.signal.load(std::memory_order_acquire);
}

// The thread that replaces `parked` by a signal releases the semaphore once; we acquire it once.
void WorkerPool::park(Worker& self) {
  const Watched watched = hooks_.watch ? watch(self) : Watched::no;
  if (watched == Watched::until_unparked) return;
  if (watched == Watched::no && self.unparked.try_acquire_for(kLongIdle)) return;
  hooks_.long_idle();
  self.unparked.acquire();
}

// One worker at a time watches, until it is unparked or has seen nothing held back for kLongIdle.
WorkerPool::Watched WorkerPool::watch(Worker& self) {
  constexpr int kQuietLooks = 20;  // (a sleep of 50 us takes twice as long)
  bool unparked = false;
  do {
    if (watched_.exchange(true, std::memory_order_seq_cst)) return Watched::no;
    for (int quiet = 0; !unparked && quiet < kQuietLooks; ++quiet) {
      unparked = self.unparked.try_acquire_for(hooks_.watch_every());
      if (!unparked && hooks_.watch(false)) quiet = 0;
    }
    watched_.store(false, std::memory_order_seq_cst);
    // Dekker with is_watched(): the recorder holds ops back, then asks; we have answered no, and
    // look for such ops again.
  } while (!unparked && hooks_.watch(false));
  if (unparked) leave_watching_to_others();
  return unparked ? Watched::until_unparked : Watched::until_quiet;
}

// A worker that is called away. (Who was parked for good, as we watched, takes our place.)
void WorkerPool::leave_watching_to_others() {
  if (hooks_.watch && !is_watched() && hooks_.watch(true)) nudge();
}

void WorkerPool::guests_changed() {
  num_guests_.store(guests_ + static_cast<unsigned>(asleep_.size()), std::memory_order_relaxed);
}

void WorkerPool::ready_changed() {
  first_.store(ready_.first(), std::memory_order_relaxed);
  offers_brief_.store(!ready_.empty() && ready_.front().brief, std::memory_order_relaxed);
}

bool WorkerPool::left_to_guests() const noexcept {
  return guests_ != 0 && ready_.front().brief && ready_.size() <= kLeftToGuests;
}

// Keeps P1. Returns a worker to unpark after the lock, or null.
WorkerPool::Worker* WorkerPool::wake_for_work() {
  if (!may_take() || idle_.empty() || on_their_way_ != 0 || left_to_guests()) return nullptr;
  return choose_idle(Signal::work);
}

// Takes a worker out of idle_ and gives it the signal. Returns it if it must be unparked.
WorkerPool::Worker* WorkerPool::choose_idle(Signal signal) {
  Worker* const worker = spinner_ ? spinner_ : idle_.back();
  spinner_ = nullptr;
  std::erase(idle_, worker);
  num_idle_.fetch_sub(1, std::memory_order_relaxed);
  if (signal == Signal::work) {
    worker->on_its_way = true;
    ++on_their_way_;
  }
  const bool sleeps = worker->signal.exchange(signal, std::memory_order_acq_rel) == Signal::parked;
  return sleeps ? worker : nullptr;
}

void WorkerPool::unpark(Worker* worker) {
  if (worker) worker->unparked.release();
}

// The window of the recorder, without a lost wakeup. A recording thread appends to its window, then
// asks here, and nudges if the answer is yes. A worker announces itself (num_idle_ + 1), then calls
// hungry, which looks at the window, and sleeps if that is empty. Both change num_idle_ by an
// atomic read-modify-write, so one comes first in its modification order. If the worker's does, the
// answer is yes, and the nudge finds the worker. If ours does, the worker's reads from it or from
// a later one, it synchronizes with us, and hungry sees the window as we left it. (A plain load, or
// a fetch_add on one side only, would let both miss each other: the store-buffer case of Dekker.
// TSan does not know fences, but it does know this.) A worker that the answer found may be chosen
// for something else before the nudge looks. So the nudge asks in the same way: a plain load that
// finds nobody there would not make that worker's next call of hungry see the window.
bool WorkerPool::has_idle_worker() const noexcept {
  return num_idle_.load(std::memory_order_relaxed) != 0 ||
         num_idle_.fetch_add(0, std::memory_order_acq_rel) != 0;
}

bool WorkerPool::nudge() noexcept {
  if (!has_idle_worker()) return false;
  Worker* woken = nullptr;
  {
    std::lock_guard lock(mutex_);
    if (idle_.empty()) return false;
    woken = choose_idle(Signal::hungry);
  }
  unpark(woken);
  return true;
}

}  // namespace lazyeng::engine
