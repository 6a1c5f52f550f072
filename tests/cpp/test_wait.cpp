// tests/cpp/test_wait.cpp: what waits wait for, how they end, and the bounds on run-ahead.
#include <algorithm>
#include <mutex>

#include "tests/cpp/ops.h"

using namespace lazyeng;
using namespace lazyeng::test;

namespace {

void unused_var() {
  auto engine = make_threaded_engine(1);  // not even started
  IntVar& var = *new IntVar;
  check(engine->wait_for_var(var, {}) == WaitResult::done, "done");
  check(!var.pending(), "not pending");
  var.release();
  check(engine->wait_for_vars({}, {}) == WaitResult::done, "nothing to wait for");
  check(engine->wait_for_all({}) == WaitResult::done, "no ops to wait for");
  check(engine->wait_below_limits({}) == WaitResult::done, "below limits");
}

/// A wait on another thread.
class Waiting {
 public:
  explicit Waiting(std::function<void()> wait)
      : thread_([this, wait = std::move(wait)] {
          wait();
          over_ = true;
          over_.notify_all();
        }) {}
  ~Waiting() { thread_.join(); }
  /// For a wait that must not end yet: it is given some time to end by mistake.
  bool lasts() {
    sleep_ms(60);
    return !over_;
  }
  /// For a wait that must end: hangs if it does not.
  void ends() { over_.wait(false); }

 private:
  std::atomic<bool> over_{false};
  std::thread thread_;
};

void waits_for_writes_not_reads() {
  auto engine = started(2);
  auto var = make_ref<IntVar>();
  Gate read, write;
  push(*engine, writes(op([&] { var->value = 1; }), {var}));
  push(*engine, reads(op([&] { read.wait(); }), {var}));
  read.until_entered();
  engine->wait_for_var(*var, {});  // not behind the read: this would hang
  same(var->value, 1u, "value");
  push(*engine, writes(op([&] {
                         write.wait();
                         var->value = 2;
                       }),
                       {var}));
  {
    Waiting waiting([&] { engine->wait_for_var(*var, {}); });
    check(waiting.lasts(), "waits for the write, which waits for the slow read");
    read.open();
    check(waiting.lasts(), "waits for the slow write");
    // A read and a write appended later do not matter to it, nor does it hold them up.
    write.open();
    waiting.ends();
    same(var->value, 2u, "value");
  }
  Gate late;
  push(*engine, reads(op([&] { late.wait(); }), {var}));
  push(*engine, writes(op([&] { var->value = 3; }), {var}));
  Waiting all([&] { engine->wait_for_all({}); });
  check(all.lasts(), "wait_for_all waits for reads too");
  late.open();
}

// The same where the wait begins while a write is pending, with the slow read between the two.
void waits_pass_reads() {
  auto engine = started(2);
  auto var = make_ref<IntVar>();
  Gate write, read;
  push(*engine, writes(fallible([&] {
                         write.wait();
                         return make_failure(1);
                       }),
                       {var}));
  push(*engine, reads(op([] {}), {var}));  // skipped
  push(*engine, writes(op([&] { var->value = 2; }), {var}, true));
  push(*engine, reads(op([&] { read.wait(); }), {var}));
  Waiting waiting([&] { engine->wait_for_var(*var, {}); });
  check(waiting.lasts(), "waits for the writes");
  write.open();
  read.until_entered();
  waiting.ends();  // it does not wait for the slow read
  same(var->value, 2u, "value");
}

void waits_for_several() {
  auto engine = started(2);
  std::vector<Ref<IntVar>> vars;
  std::vector<Var*> raw;
  for (int i = 0; i < 10; ++i) {
    vars.push_back(make_ref<IntVar>());
    raw.push_back(vars.back().get());
  }
  raw.push_back(vars[3].get());
  Gate gate;
  push(*engine, writes(op([&] { gate.wait(); }), {vars[3]}));
  for (int i = 0; i < 3; ++i) push(*engine, writes(op([&, i] { vars[i]->value = 1; }), {vars[i]}));
  Waiting waiting([&] { engine->wait_for_vars(raw, {}); });
  check(waiting.lasts(), "waits for the fourth");
  // The wait on the fourth does not hold up writes of the first.
  push(*engine, writes(op([&] { vars[0]->value = 2; }), {vars[0]}));
  engine->wait_for_var(*vars[0], {});
  same(vars[0]->value, 2u, "value");
  gate.open();
}

void waits_for_earlier_ops_only() {
  auto engine = started(3);
  Gate first, second;
  push(*engine, op([&] { first.wait(); }));
  first.until_entered();
  Waiting waiting([&] { engine->wait_for_all({}); });
  check(waiting.lasts(), "waits for the first");
  push(*engine, op([&] { second.wait(); }));
  second.until_entered();
  Waiting both([&] { engine->wait_for_all({}); });
  first.open();
  waiting.ends();  // it does not wait for what was pushed later
  check(both.lasts(), "the later wait does");
  second.open();
}

void interrupted_waits() {
  auto engine = started(1);
  auto var = make_ref<IntVar>();
  Gate gate;
  push(*engine, writes(op([&] { gate.wait(); }), {var}));
  gate.until_entered();
  int polls = 0;
  const auto start = std::chrono::steady_clock::now();
  check(engine->wait_for_var(*var, [&] { return ++polls == 5; }) == WaitResult::interrupted,
        "left");
  const auto ms = (std::chrono::steady_clock::now() - start) / milliseconds(1);
  check(ms >= 80, "no more than one poll each 20 ms, but five took " + std::to_string(ms) + " ms");
  Var* one = var.get();
  auto at_once = [] { return true; };
  check(engine->wait_for_vars({&one, 1}, at_once) == WaitResult::interrupted, "left");
  check(engine->wait_for_all(at_once) == WaitResult::interrupted, "left");
  engine->set_limits({0, 0});
  check(engine->wait_below_limits(at_once) == WaitResult::interrupted, "left");
  bool ran = false;
  auto left = writes(op([&] { ran = true; }), {var});
  engine->admit(0);
  bool appended = false;
  check(engine->push_and_run(left, at_once, [&] { appended = true; }) == WaitResult::interrupted,
        "left");
  check(appended && !ran, "appended, not run");
  std::atomic<int> interrupted{0};
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 20; ++i)
      threads.emplace_back(
          [&] { interrupted += engine->wait_for_var(*var, at_once) == WaitResult::interrupted; });
  }
  same(interrupted.load(), 20, "threads that left");
  gate.open();
  check(engine->wait_for_all({}) == WaitResult::done, "goes on");
  check(ran, "what the caller left is run by a worker");
  var = nullptr;
}

// What the caller does between the append and its wait may fail: the op is run all the same, by the
// caller if its turn has come, else by a worker.
void caller_fails_after_the_append() {
  auto engine = started(1);
  auto var = make_ref<IntVar>();
  for (const bool busy : {false, true}) {
    Gate gate;
    if (busy) {
      push(*engine, writes(op([&] { gate.wait(); }), {var}));
      gate.until_entered();
    }
    bool ran = false, thrown = false;
    engine->admit(0);
    try {
      engine->push_and_run(writes(op([&] { ran = true; }), {var}), {},
                           [] { throw std::bad_alloc(); });
    } catch (const std::bad_alloc&) {
      thrown = true;
    }
    check(thrown && ran != busy, "thrown, and run if it could be");
    if (busy) gate.open();
    check(engine->wait_for_all({}) == WaitResult::done, "goes on");
    check(ran, "run");
  }
}

// Interrupts race with the events that are waited for: the first poll comes after 2 ms.
void interrupt_races() {
  auto engine = started(2);
  const int rounds = 150;
  int left = 0, runs = 0;
  for (int i = 0; i < rounds; ++i) {
    auto var = make_ref<IntVar>();
    const std::chrono::microseconds time(1800 + i % 40 * 10);
    push(*engine, writes(op([=] { std::this_thread::sleep_for(time); }), {var}));
    engine->admit(0);
    auto mine = writes(op([&] { ++runs; }), {var});
    if (i % 2) {
      left += engine->push_and_run(mine, [] { return true; }) == WaitResult::interrupted;
    } else {
      engine->push(mine);
      left += engine->wait_for_var(*var, [] { return true; }) == WaitResult::interrupted;
    }
    engine->wait_for_var(*var, {});
    same(runs, i + 1, "each op runs once");
  }
  std::printf("    (%d of %d left)\n", left, rounds);
}

// A wait that nobody wakes ends at one of its polls, 20 ms apart. Here what it waits for comes a
// millisecond after its first poll: woken, it ends before the second, unless the machine is busy.
void waits_end_promptly() {
  auto engine = started(1);
  engine->set_limits({0, 0});
  using Wait = std::function<void(Var&, const Interrupt&)>;
  const auto is_woken = [&](const Wait& wait) {
    auto var = make_ref<IntVar>();
    Gate gate;
    push(*engine, writes(op([&] {
                           gate.wait();
                           sleep_ms(1);  // until the wait sleeps again
                         }),
                         {var}));
    int polls = 0;
    wait(*var, [&] {
      ++polls;
      gate.open();
      return false;
    });
    engine->wait_for_all({});
    return polls == 1;
  };
  const auto check_prompt = [&](const char* name, const Wait& wait) {
    int woken = 0;
    for (int tries = 0; tries < 200 && woken < 10; ++tries) woken += is_woken(wait);
    same(woken, 10, std::string(name) + ": waits that were woken");
  };
  check_prompt("wait_for_var",
               [&](Var& var, const Interrupt& interrupt) { engine->wait_for_var(var, interrupt); });
  check_prompt("wait_for_all",
               [&](Var&, const Interrupt& interrupt) { engine->wait_for_all(interrupt); });
  check_prompt("wait_below_limits",
               [&](Var&, const Interrupt& interrupt) { engine->wait_below_limits(interrupt); });
  check_prompt("push_and_run", [&](Var& var, const Interrupt& interrupt) {
    engine->admit(0);
    engine->push_and_run(writes(op([] {}), {Ref<Var>(&var)}), interrupt);
  });
}

constexpr Limits kFewPending{.max_pending_ops = 100, .max_pending_bytes = 10000};

void wait_for_half_of(Engine& engine) {
  engine.wait_below_limits({});
  const Counters now = engine.counters();
  check(now.pending_ops <= kFewPending.max_pending_ops / 2, "half of the ops");
  check(now.pending_bytes <= kFewPending.max_pending_bytes / 2, "half of the bytes");
}

// The worker stands in a gate until the limits are exceeded.
void bounded_run_ahead() {
  for (unsigned workers : {1u, 2u}) {
    auto engine = started(workers);
    engine->set_limits(kFewPending);
    auto var = make_ref<IntVar>();
    for (uint64_t bytes : {1, 999, 1, 999}) {  // bounded by ops, by bytes
      Gate gate;
      const auto push_one = [&](std::function<void()> body) {
        auto one = writes(op(std::move(body)), {var});
        one->cost_bytes = bytes;
        push(*engine, one);
      };
      push_one([&] { gate.wait(); });
      while (!engine->above_limits()) push_one([] {});
      const Counters most = engine->counters();
      // The limit itself is allowed; the op that exceeds it is pushed.
      same(most.pending_ops, bytes == 1 ? 101u : 11u, "pending ops");
      same(most.pending_bytes, most.pending_ops * bytes, "pending bytes");
      gate.open();
      wait_for_half_of(*engine);
      engine->wait_for_all({});
      same(engine->counters().pending_ops, 0u, "pending ops at the end");
      same(engine->counters().pending_bytes, 0u, "pending bytes at the end");
    }
  }
}

// The worker runs meanwhile, as fast as it can.
void bounded_while_running() {
  for (unsigned workers : {1u, 2u}) {
    auto engine = started(workers);
    engine->set_limits(kFewPending);
    auto var = make_ref<IntVar>();
    const int count = scaled(20000);
    for (int i = 0; i < count; ++i) {
      auto one = writes(op([] {}), {var});
      one->cost_bytes = i % 2000 < 1000 ? 1 : 999;
      push(*engine, one);
      const Counters now = engine->counters();
      check(now.pending_ops <= 101, "pending ops: " + std::to_string(now.pending_ops));
      check(now.pending_bytes <= 10999, "pending bytes: " + std::to_string(now.pending_bytes));
      if (engine->above_limits()) wait_for_half_of(*engine);
    }
    engine->wait_for_all({});
    same(engine->counters().pending_ops, 0u, "pending ops");
    same(engine->counters().pending_bytes, 0u, "pending bytes");
  }
}

}  // namespace

int main(int argc, char** argv) {
  return run_tests(argc, argv,
                   {{"waiting on an unused var", unused_var},
                    {"waits for writes, not for reads", waits_for_writes_not_reads},
                    {"waits pass slow reads", waits_pass_reads},
                    {"waits for several vars", waits_for_several},
                    {"wait_for_all waits for earlier ops only", waits_for_earlier_ops_only},
                    {"waits end promptly", waits_end_promptly},
                    {"interrupted waits", interrupted_waits},
                    {"a caller fails after the append", caller_fails_after_the_append},
                    {"interrupts race with completion", interrupt_races},
                    {"bounded run-ahead", bounded_run_ahead},
                    {"bounded while ops run", bounded_while_running}});
}
