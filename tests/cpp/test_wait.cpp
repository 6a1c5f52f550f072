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

// Waits on another thread; says whether the wait is over.
class Waiting {
 public:
  explicit Waiting(std::function<void()> wait)
      : thread_([this, wait = std::move(wait)] {
          wait();
          over_ = true;
        }) {}
  ~Waiting() { thread_.join(); }
  bool over() {
    sleep_ms(60);
    return over_;
  }

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
    Waiting waiting([&] {
      engine->wait_for_var(*var, {});
      same(var->value, 2u, "value");
    });
    check(!waiting.over(), "waits for the write, which waits for the slow read");
    read.open();
    check(!waiting.over(), "waits for the slow write");
    // A read and a write appended later do not matter to it, nor does it hold them up.
    write.open();
  }
  Gate late;
  push(*engine, reads(op([&] { late.wait(); }), {var}));
  push(*engine, writes(op([&] { var->value = 3; }), {var}));
  Waiting all([&] { engine->wait_for_all({}); });
  check(!all.over(), "wait_for_all waits for reads too");
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
  check(!waiting.over(), "waits for the writes");
  write.open();
  read.until_entered();
  check(waiting.over(), "does not wait for the slow read");
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
  check(!waiting.over(), "waits for the fourth");
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
  check(!waiting.over(), "waits for the first");
  push(*engine, op([&] { second.wait(); }));
  second.until_entered();
  Waiting both([&] { engine->wait_for_all({}); });
  first.open();
  check(waiting.over(), "does not wait for what was pushed later");
  check(!both.over(), "the later wait does");
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
  check(ms >= 80 && ms < 1500, "five polls took " + std::to_string(ms) + " ms");
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

// Interrupts race with the events that are waited for.
void interrupt_races() {
  auto engine = started(2);
  const int rounds = 150;
  int left = 0, runs = 0;
  for (int i = 0; i < rounds; ++i) {
    auto var = make_ref<IntVar>();
    push(*engine,
         writes(op([] { std::this_thread::sleep_for(std::chrono::microseconds(20030)); }), {var}));
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

// Relying on the poll every 20 ms would take a second for each of the waits.
void waits_end_promptly() {
  auto engine = started(1);
  auto seconds = [&](const std::function<void(Var&)>& wait) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 50; ++i) {
      auto var = make_ref<IntVar>();
      push(*engine, writes(op([] { sleep_ms(1); }), {var}));
      wait(*var);
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  engine->set_limits({0, 0});
  check(seconds([&](Var& var) { engine->wait_for_var(var, {}); }) < 0.6, "wait_for_var");
  check(seconds([&](Var&) { engine->wait_for_all({}); }) < 0.6, "wait_for_all");
  check(seconds([&](Var&) { engine->wait_below_limits({}); }) < 0.6, "wait_below_limits");
  check(
      seconds([&](Var& var) { push_and_run(*engine, writes(op([] {}), {Ref<Var>(&var)})); }) < 0.6,
      "push_and_run");
}

void bounded_run_ahead() {
  for (unsigned workers : {1u, 2u}) {
    auto engine = started(workers);
    engine->set_limits({100, 10000});
    uint64_t most_ops = 0, most_bytes = 0;
    auto var = make_ref<IntVar>();
    for (int i = 0; i < 20000; ++i) {
      auto one = writes(op([] {}), {var});
      one->cost_bytes = i < 10000 ? 1 : 999;  // bounded by ops, then by bytes
      push(*engine, one);
      const Counters now = engine->counters();
      most_ops = std::max(most_ops, now.pending_ops);
      most_bytes = std::max(most_bytes, now.pending_bytes);
      if (!engine->above_limits()) continue;
      engine->wait_below_limits({});
      const Counters then = engine->counters();
      check(then.pending_ops <= 50 && then.pending_bytes <= 5000, "half of the limits");
    }
    check(most_ops <= 101 && most_ops > 50, "most ops: " + std::to_string(most_ops));
    // The limit itself is allowed, and the op that goes beyond it.
    check(most_bytes <= 10999 && most_bytes > 5000, "most bytes: " + std::to_string(most_bytes));
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
                    {"interrupts race with completion", interrupt_races},
                    {"bounded run-ahead", bounded_run_ahead}});
}
