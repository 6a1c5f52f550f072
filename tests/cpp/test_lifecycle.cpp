// tests/cpp/test_lifecycle.cpp: idle workers, start and stop, fork.
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

#include <dlfcn.h>
#include <pthread.h>
#include <sys/wait.h>

#include <cerrno>
#include <mutex>
#include <random>
#include <system_error>

#include "tests/cpp/ops.h"

using namespace lazyeng;
using namespace lazyeng::test;

namespace {

constexpr int kMany = 1 << 20;
std::atomic<int> threads_left{kMany};

}  // namespace

/// In front of the system's: it may have no thread left.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*body)(void*), void* argument) noexcept {
  static const auto create =
      reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  return threads_left.fetch_sub(1) > 0 ? create(thread, attributes, body, argument) : EAGAIN;
}

namespace {

void stop_and_start() {
  auto engine = make_threaded_engine(2);
  auto var = make_ref<IntVar>();
  auto add = [&] {
    auto one = writes(op([&] { ++var->value; }), {var});
    one->queue = QueueId::python;  // its thread starts with the first op, and again after each stop
    push(*engine, one);
  };
  for (int i = 0; i < 10; ++i) add();
  sleep_ms(20);
  check(var->pending() && var->value == 0, "nothing runs before start");
  engine->start();
  engine->start();
  engine->wait_for_all({});
  same(var->value, 10u, "runs after start");
  for (int round = 1; round <= 30; ++round) {
    for (int i = 0; i < 10; ++i) add();
    engine->stop();
    same(var->value, round * 20u, "stop finishes everything");
    engine->stop();
    for (int i = 0; i < 10; ++i) add();
    if (round == 1) sleep_ms(20);
    check(var->pending() && var->value == round * 20u, "a push after stop does not run");
    engine->start();
    engine->wait_for_var(*var, {});
    same(var->value, round * 20u + 10, "it runs after start");
  }
}

/// Two of four threads do the work of four; of none nothing is lost.
void too_few_threads() {
  auto engine = make_threaded_engine(4);
  auto var = make_ref<IntVar>();
  auto add = [&] { push(*engine, writes(op([&] { ++var->value; }), {var})); };
  threads_left = 2;
  engine->start();
  for (int i = 0; i < 100; ++i) add();
  engine->wait_for_all({});
  same(var->value, 100u, "with two threads");
  engine->stop();
  threads_left = 0;
  bool refused = false;
  try {
    engine->start();
  } catch (const std::system_error&) {
    refused = true;
  }
  check(refused, "no thread");
  threads_left = kMany;
  add();
  engine->wait_for_all({});
  same(var->value, 101u, "the next op gets threads");
  engine->stop();
}

void naive_stop_and_start() {
  auto engine = make_naive_engine();
  auto var = make_ref<IntVar>();
  push(*engine, writes(op([&] { ++var->value; }), {var}));
  same(var->value, 1u, "runs at push");
  engine->stop();
  engine->stop();
  for (int i = 0; i < 3; ++i) push(*engine, writes(op([&] { ++var->value; }), {var}));
  same(var->value, 1u, "stopped");
  engine->start();
  engine->start();
  same(var->value, 4u, "started");
}

void stop_under_load() {
  auto engine = started(2);
  std::atomic<bool> done{false};
  auto var = make_ref<IntVar>();
  uint64_t pushed = 0;
  std::thread pusher([&] {
    for (; !done; ++pushed) {
      auto one = writes(op([&] { ++var->value; }), {var});
      one->queue = static_cast<QueueId>(pushed % 3);
      push(*engine, one);
      if (engine->above_limits()) engine->wait_below_limits([&] { return done.load(); });
    }
  });
  engine->set_limits({1000, 1000});
  const TimeBudget time;
  for (int i = 0; i < 50 && time.is_left(); ++i) {
    engine->stop();
    engine->start();
    engine->set_num_workers(1 + i % 4);
    same(engine->num_workers(), 1u + i % 4, "num_workers");
  }
  done = true;
  pusher.join();
  engine->wait_for_all({});
  same(var->value, pushed, "ops run");
}

void destruction_runs_everything() {
  for (unsigned workers : {0u, 2u}) {
    auto var = make_ref<IntVar>();
    auto engine = started(workers);
    for (int i = 0; i < 100; ++i) push(*engine, writes(op([&] { ++var->value; }), {var}));
    engine->stop();
    for (int i = 0; i < 100; ++i) push(*engine, writes(op([&] { ++var->value; }), {var}));
    engine.reset();
    same(var->value, 200u, "ops run");
    same(var->use_count(), 1u, "references left");
  }
}

int run_and_sum(Engine& engine, Ref<IntVar> var) {
  engine.start();
  for (int i = 0; i < 1000; ++i) {
    auto one = writes(op([=] { ++var->value; }), {var});
    one->queue = static_cast<QueueId>(i % 3);
    push(engine, one);
  }
  engine.wait_for_var(*var, {});
  engine.wait_for_all({});
  engine.stop();
  return static_cast<int>(var->value);
}

void fork_with_pending_work() {
  auto engine = started(2);
  auto var = make_ref<IntVar>();
  auto add = [&] { push(*engine, writes(op([=] { ++var->value; }), {var})); };
  for (int i = 0; i < 1000; ++i) add();
  engine->stop();
  for (int i = 0; i < 500; ++i) add();  // pending across the fork, in both processes
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    _exit(run_and_sum(*engine, var) == 2500 ? 0 : 1);
  }
  same(run_and_sum(*engine, var), 2500, "sum in the parent");
  int status = -1;
  waitpid(child, &status, 0);
  same(status, 0, "exit status of the child");
}

void pause_a_little(unsigned random) {  // up to 30 us, most often much less
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::nanoseconds(random / 16 % (1u << random % 16));
  while (Clock::now() < end) {
  }
}

/// What the recorder does: ops collect in a window until the engine is hungry.
class Window {
 public:
  explicit Window(Engine& engine) : engine_(engine) {
    engine.set_hungry([this](QueueId) { return flush(); });
  }
  void record(Ref<Op> op) {
    engine_.admit(op->cost_bytes);
    {
      std::lock_guard lock(mutex_);
      ops_.push_back(std::move(op));
    }
    if (engine_.has_idle_worker()) engine_.nudge();
  }
  bool flush() {
    {
      std::lock_guard lock(mutex_);
      if (!ops_.empty()) {
        engine_.push(std::span(ops_));
        ops_.clear();
        return true;
      }
    }
    pause_a_little(++calls_ * 7919);  // something may come between the look and the answer
    return false;
  }

 private:
  Engine& engine_;
  std::mutex mutex_;
  std::vector<Ref<Op>> ops_;
  std::atomic<unsigned> calls_{0};
};

// The recorder never flushes here: one lost wakeup and the test hangs. Pauses of about the length
// of a worker's spin make it meet every stage of falling asleep.
void hungry_workers() {
  for (unsigned workers : {1u, 2u, 8u}) {
    auto engine = make_threaded_engine(workers);
    Window window(*engine);
    engine->start();
    std::mt19937 random(workers);
    std::atomic<int> count{0};
    const int rounds = scaled(20000);
    const TimeBudget time;
    for (int i = 0; i < rounds && time.is_left(); ++i) {
      window.record(op([&] { ++count; }));
      if (random() % 8 == 0) window.record(op([&, c = &count] { *c += 0; }));
      while (count != i + 1) std::this_thread::yield();
      pause_a_little(random());
    }
    engine->stop();
  }
}

// Two recording threads, each with its own count of ops.
void hungry_workers_two_threads() {
  auto engine = make_threaded_engine(2);
  Window window(*engine);
  engine->start();
  auto record = [&](unsigned seed) {
    std::mt19937 random(seed);
    std::atomic<int> count{0};
    int recorded = 0;
    const int rounds = scaled(5000);
    const TimeBudget time;
    for (int i = 0; i < rounds && time.is_left(); ++i) {
      for (int burst = 1 + random() % 4; burst > 0; --burst, ++recorded) {
        auto one = op([&] { ++count; });
        one->queue = static_cast<QueueId>(random() % 3);
        window.record(one);
      }
      while (count != recorded) std::this_thread::yield();
    }
  };
  std::thread other(record, 1);
  record(2);
  other.join();
  engine->stop();
}

/// As Window, for a queue whose thread fetches what is recorded while it is busy: nobody else does.
class WindowOfQueue {
 public:
  WindowOfQueue(Engine& engine, QueueId queue) : engine_(engine), queue_(queue) {
    engine.set_hungry([this](QueueId caller) { return flush(caller); });
  }
  void record(Ref<Op> op) {
    op->queue = queue_;
    engine_.admit(op->cost_bytes);
    {
      std::lock_guard lock(mutex_);
      ops_.push_back(std::move(op));
    }
    if (!engine_.is_busy(queue_)) engine_.nudge(queue_);
  }
  bool flush(QueueId caller) {
    {
      std::lock_guard lock(mutex_);
      if (!ops_.empty() && (caller == queue_ || !engine_.is_busy(queue_))) {
        by_others += caller != queue_;
        engine_.push(std::span(ops_));
        ops_.clear();
        return true;
      }
    }
    pause_a_little(++calls_ * 7919);
    return false;
  }
  std::atomic<int> by_others{0};

 private:
  Engine& engine_;
  const QueueId queue_;
  std::mutex mutex_;
  std::vector<Ref<Op>> ops_;
  std::atomic<unsigned> calls_{0};
};

// Nobody flushes: one lost wakeup and the test hangs.
void hungry_threads_of_queues() {
  for (unsigned workers : {1u, 4u}) {
    auto engine = make_threaded_engine(workers);
    WindowOfQueue window(*engine, QueueId::first_device);
    engine->start();
    std::mt19937 random(workers);
    std::atomic<int> count{0};
    int recorded = 0;
    const int rounds = scaled(10000);
    const TimeBudget time;
    for (int i = 0; i < rounds && time.is_left(); ++i) {
      for (int burst = 1 + random() % 4; burst > 0; --burst, ++recorded)
        window.record(op([&] { ++count; }));
      if (i % 100 == 99) {  // threads end and start again
        engine->stop();
        engine->start();
      }
      while (count != recorded) std::this_thread::yield();
      pause_a_little(random());
    }
    engine->stop();
  }
}

void a_busy_queue_fetches_for_itself() {
  auto engine = make_threaded_engine(2);
  WindowOfQueue window(*engine, QueueId::first_device);
  check(!engine->is_busy(QueueId::first_device), "no thread yet");
  engine->start();
  std::atomic<int> count{0};
  window.record(op([&] { ++count; }));  // fetched by the CPU pool: its own thread is not there yet
  while (count != 1) sleep_ms(1);
  while (engine->is_busy(QueueId::first_device)) sleep_ms(1);
  const int by_others = window.by_others;
  Gate gate;
  window.record(op([&] { gate.wait(); }));
  gate.until_entered();
  check(engine->is_busy(QueueId::first_device), "busy");
  for (int i = 0; i < 10; ++i) window.record(op([&] { ++count; }));
  engine->nudge();
  sleep_ms(20);
  same(engine->counters().pushed, uint64_t{2}, "nobody fetches");
  gate.open();
  while (count != 11) sleep_ms(1);
  same(window.by_others.load(), by_others, "its own thread does");
  engine->stop();
  check(!engine->is_busy(QueueId::first_device), "stopped");
}

/// What the recorder does with ops that it holds back: an idle worker pushes them when no more
/// come.
class HeldWindow {
 public:
  explicit HeldWindow(Engine& engine) : engine_(engine) {
    engine.set_watch([this](bool last) { return last ? newest_.load() != 0 : watch(); });
  }
  void record(Ref<Op> op) {
    engine_.admit(op->cost_bytes);
    bool first;
    {
      std::lock_guard lock(mutex_);
      ops_.push_back(std::move(op));
      first = ops_.size() == 1;
      newest_.store(++last_);
    }
    if (first && !engine_.is_watched() && engine_.has_idle_worker()) engine_.nudge();
  }

 private:
  bool watch() {
    const uint64_t newest = newest_.load();
    if (newest != 0 && newest == seen_) {
      std::lock_guard lock(mutex_);
      newest_.store(0);
      engine_.push(std::span(ops_));
      ops_.clear();
    }
    seen_ = newest;
    return newest != 0;
  }

  Engine& engine_;
  std::mutex mutex_;
  std::vector<Ref<Op>> ops_;
  uint64_t last_ = 0;
  std::atomic<uint64_t> newest_{0};
  std::atomic<uint64_t> seen_{0};
};

// Nobody but the watching worker pushes. Pauses reach from less than a look to long after the last
// one; some ops come from elsewhere and call the watching worker away.
void held_ops_are_watched() {
  for (unsigned workers : {1u, 2u}) {
    auto engine = make_threaded_engine(workers);
    HeldWindow window(*engine);
    engine->start();
    std::mt19937 random(workers);
    std::atomic<int> count{0};
    const int rounds = scaled(1000);
    const TimeBudget time;
    for (int i = 0, recorded = 0; i < rounds && time.is_left(); ++i) {
      for (unsigned more = random() % 3 + 1; more > 0; --more, ++recorded)
        window.record(op([&] { ++count; }));
      if (random() % 4 == 0) push(*engine, op([] {}));
      while (count != recorded) std::this_thread::yield();
      if (random() % 8 == 0)
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 6000));
      else
        pause_a_little(random());
    }
    engine->stop();
  }
}

// The watching worker is called away for long while an op is held. The other one, which parked
// because somebody watched, takes over.
void another_worker_goes_on_watching() {
  auto engine = make_threaded_engine(2);
  HeldWindow window(*engine);
  engine->start();
  std::atomic<int> count{0};
  const auto until = [&](int enough) {
    for (int ms = 0; count != enough && ms < 5000; ++ms) sleep_ms(1);
    same(count.load(), enough, "held ops that were pushed");
  };
  constexpr int kQuiet = 8;  // ms: longer than anybody watches, or sleeps before it parks for good
  for (int i = 0; i < scaled(20); ++i) {
    {
      Gate gate, other;  // both threads are there, and what follows one of them does
      push(*engine, op([&] { gate.wait(); }));
      push(*engine, op([&] { other.wait(); }));
      gate.until_entered(), other.until_entered();
      gate.open(), other.open();
      engine->wait_for_all({});
    }
    sleep_ms(kQuiet);
    push(*engine, op([] {}));
    engine->wait_for_all({});
    sleep_ms(kQuiet);
    window.record(op([&] { ++count; }));
    until(2 * i + 1);
    Gate gate;
    window.record(op([&] { ++count; }));  // somebody still watches
    push(*engine, op([&] { gate.wait(); }));
    gate.until_entered();
    until(2 * i + 2);
    gate.open();
    engine->wait_for_all({});
  }
  engine->stop();
}

// The same for the queue itself: single pushes into pools that are falling asleep.
void sleepy_workers() {
  for (unsigned workers : {1u, 2u, 8u}) {
    auto engine = make_threaded_engine(workers);
    std::atomic<unsigned> calls{0};
    engine->set_hungry(
        [&](QueueId) {  // pushes come between a worker's look at the queue and its sleep
          pause_a_little(++calls * 7919);
          return false;
        });
    engine->start();
    std::mt19937 random(workers);
    const int rounds = scaled(20000);
    const TimeBudget time;
    for (int i = 0; i < rounds && time.is_left(); ++i) {
      auto var = make_ref<IntVar>();
      auto one = writes(op([=] { ++var->value; }), {var});
      one->queue = static_cast<QueueId>(random() % 8 == 0);
      push(*engine, one);
      if (random() % 4 == 0) push(*engine, op([] {}));
      engine->wait_for_var(*var, {});
      same(var->value, 1u, "value");
      pause_a_little(random());
    }
  }
}

void idle_hints() {
  auto engine = make_threaded_engine(1);
  std::atomic<int> asked{0};
  engine->set_hungry([&](QueueId) {
    ++asked;
    return false;
  });
  check(!engine->has_idle_worker(), "not started");
  engine->nudge();
  engine->start();
  while (!engine->has_idle_worker()) sleep_ms(1);
  sleep_ms(20);  // asleep
  const int before = asked;
  check(before >= 1, "hungry before sleep");
  check(engine->has_idle_worker(), "an idle worker");
  check(!engine->has_idle_worker(QueueId::python), "no python thread yet");
  engine->nudge();
  while (asked == before || !engine->has_idle_worker()) sleep_ms(1);
  sleep_ms(20);
  const int then = asked;
  Gate gate;
  engine->nudge();
  push(*engine, op([&] { gate.wait(); }));  // keeps the worker, but the nudge comes first
  gate.until_entered();
  check(asked > then, "hungry first");
  check(!engine->has_idle_worker(), "busy");
  gate.open();
  engine->wait_for_all({});
  while (!engine->has_idle_worker()) sleep_ms(1);
  engine->stop();
  check(!engine->has_idle_worker(), "stopped");
}

void long_idle_workers() {
  auto engine = make_threaded_engine(1);
  std::atomic<int> told{0};
  engine->set_long_idle([&] {
    ++told;
    sleep_ms(1);  // pushes come meanwhile, too
  });
  engine->start();
  auto var = make_ref<IntVar>();
  auto add = [&] { push(*engine, writes(op([&] { ++var->value; }), {var})); };
  add();
  engine->wait_for_all({});
  while (told == 0) sleep_ms(1);
  sleep_ms(20);
  same(told.load(), 1, "once while it is idle");
  const int rounds = scaled(300);
  for (int i = 0; i < rounds; ++i) {
    add();
    engine->wait_for_var(*var, {});
    same(var->value, i + 2u, "value");
    std::this_thread::sleep_for(std::chrono::microseconds(1700 + i * 13 % 700));
  }
  check(told <= rounds + 1, "at most once each time");
}

Ref<Op> python(Ref<Op> op) {
  op->queue = QueueId::python;
  return op;
}

void waiting_ops_lend_their_place() {
  constexpr int kDeep = 20;
  auto engine = started(1);
  for (int round = 0; round < scaled(50); ++round) {
    std::vector<Ref<IntVar>> vars;
    for (int i = 0; i <= kDeep; ++i) vars.push_back(make_ref<IntVar>());
    Gate begin;
    // Each waits for the next, which stands behind it.
    for (int i = 0; i < kDeep; ++i)
      push(*engine, python(writes(op([&, i] {
                                    begin.wait();
                                    engine->wait_for_var(*vars[i + 1], {});
                                    vars[i]->value = vars[i + 1]->value + 1;
                                  }),
                                  {vars[i]})));
    push(*engine, python(writes(op([&] { vars[kDeep]->value = 1; }), {vars[kDeep]})));
    begin.open();
    if (round % 2 == 0) engine->wait_for_var(*vars[0], {});
    if (round % 5 == 0) engine->stop();
    engine->wait_for_all({});
    same(vars[0]->value, kDeep + 1u, "value");
    engine->start();
  }
}

void one_at_a_time_if_none_waits() {
  auto engine = started(2);
  std::atomic<int> at_work{0}, most{0};
  auto work = [&] {
    const int now = ++at_work;
    if (now > most) most = now;
    sleep_ms(1);
    --at_work;
  };
  auto gate = make_ref<IntVar>();
  Gate begin;
  push(*engine, writes(op([&] { begin.wait(); }), {gate}));
  push(*engine, python(op([&] { engine->wait_for_var(*gate, {}); })));
  begin.until_entered();
  for (int i = 0; i < 10; ++i) push(*engine, python(op(work)));  // on a second thread
  sleep_ms(30);
  begin.open();
  engine->wait_for_var(*gate, {});
  engine->wait_for_all({});
  for (int i = 0; i < 20; ++i) push(*engine, python(op(work)));  // there are two now
  engine->wait_for_all({});
  same(most.load(), 1, "ops of the queue at the same time");
}

void stop_is_interrupted() {
  auto engine = started(1);
  auto var = make_ref<IntVar>();
  Gate begin;
  push(*engine, writes(op([&] {
                         begin.wait();
                         ++var->value;
                       }),
                       {var}));
  check(engine->stop([] { return true; }) == WaitResult::interrupted, "left");
  begin.open();
  push(*engine, writes(op([&] { ++var->value; }), {var}));
  engine->wait_for_var(*var, {});
  same(var->value, 2u, "it runs on");
  check(engine->stop() == WaitResult::done, "stops");
}

void abandoned_ops_do_not_run() {
#ifdef __SANITIZE_ADDRESS__
  const __lsan::ScopedDisabler leaks;  // (what is abandoned is never freed)
#endif
  auto engine = started(2);
  auto var = make_ref<IntVar>();
  Gate begin;
  push(*engine, python(writes(op([&] {
                                begin.wait();
                                ++var->value;
                              }),
                              {var})));
  for (int i = 0; i < 10; ++i) push(*engine, writes(op([&] { ++var->value; }), {var}));
  begin.until_entered();
  check(engine->abandon([] { return true; }) == WaitResult::interrupted, "one still runs");
  begin.open();
  check(engine->abandon({}) == WaitResult::done, "it is over");
  engine->start();
  check(engine->is_abandoned(), "for good");
  sleep_ms(10);
  same(var->value, 1u, "ops that have run");
  engine.reset();
  same(var->value, 1u, "the same when the engine is gone");
}

}  // namespace

int main(int argc, char** argv) {
  return run_tests(argc, argv,
                   {{"stop and start", stop_and_start},
                    {"too few threads", too_few_threads},
                    {"stop and start, naive", naive_stop_and_start},
                    {"stop under load", stop_under_load},
                    {"destruction runs everything", destruction_runs_everything},
                    {"fork with pending work", fork_with_pending_work},
                    {"hungry workers find the window", hungry_workers},
                    {"hungry workers, two recording threads", hungry_workers_two_threads},
                    {"hungry threads of other queues", hungry_threads_of_queues},
                    {"a busy queue fetches for itself", a_busy_queue_fetches_for_itself},
                    {"held ops are watched", held_ops_are_watched},
                    {"another worker goes on watching", another_worker_goes_on_watching},
                    {"sleepy workers find their ops", sleepy_workers},
                    {"idle hints and nudges", idle_hints},
                    {"workers that are idle for long", long_idle_workers},
                    {"waiting ops lend their place", waiting_ops_lend_their_place},
                    {"one at a time if none waits", one_at_a_time_if_none_waits},
                    {"stop is interrupted", stop_is_interrupted},
                    {"abandoned ops do not run", abandoned_ops_do_not_run}});
}
