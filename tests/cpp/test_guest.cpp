// tests/cpp/test_guest.cpp: threads that wait and run ops meanwhile (csrc/engine/guest.h).
#include <random>

#include "tests/cpp/ops.h"

namespace lazyeng::test {
namespace {

Ref<Op> brief(Ref<Op> op) {
  op->brief = true;
  return op;
}

/// Adds one, and notes which thread did.
Ref<Op> add(const Ref<IntVar>& var, std::thread::id* by = nullptr) {
  return writes(op([var, by] {
                  ++var->value;
                  if (by) *by = std::this_thread::get_id();
                }),
                {var});
}

/// An engine whose only worker stands in a gate.
struct Busy {
  Busy() {
    engine->set_guest_hooks([this] { begun += 1 + (begun - ended) * 1000; }, [this] { ++ended; });
    engine->start();
    push(*engine, op([this] { gate.wait(); }));
    gate.until_entered();
  }
  std::unique_ptr<Engine> engine = make_threaded_engine(1);
  Gate gate;
  std::atomic<int> begun{0}, ended{0};
};

void brief_ops_run_on_the_waiting_thread() {
  Busy busy;
  auto var = make_ref<IntVar>();
  std::thread::id first, second;
  {
    const GuestScope guest(*busy.engine);
    const GuestScope again(*busy.engine);  // nests
    push(*busy.engine, {brief(add(var, &first)), brief(add(var, &second))});
    busy.engine->wait_for_var(*var, {});
  }
  same(var->value, 2u, "value");
  check(first == std::this_thread::get_id() && second == first, "run here");
  same(busy.begun.load(), 1, "begun once");
  same(busy.ended.load(), 1, "ended once");
  {
    const GuestScope guest(*busy.engine);
    busy.engine->wait_for_var(*var, {});
  }
  same(busy.begun.load(), 1, "nothing to run, nothing to begin");
}

void others_are_left_to_workers() {
  Busy busy;
  auto var = make_ref<IntVar>();
  std::thread::id who[5];
  push(*busy.engine, {brief(add(var, &who[0])), add(var, &who[1]), brief(add(var, &who[2]))});
  std::jthread opener([&] {
    while (busy.ended == 0) sleep_ms(1);  // it has gone to sleep
    busy.gate.open();
  });
  const GuestScope guest(*busy.engine);
  busy.engine->wait_for_var(*var, {});
  same(var->value, 3u, "value");
  check(who[0] == std::this_thread::get_id(), "the first ran here");
  check(who[1] != std::this_thread::get_id(), "the second did not");
  // Other queues are not a guest's business, brief or not.
  auto one = brief(add(var, &who[3]));
  one->queue = QueueId::python;
  push(*busy.engine, one);
  busy.engine->wait_for_var(*var, {});
  check(who[3] != std::this_thread::get_id(), "a queue of its own");
}

/// What a guest does leaves the workers at rest.
void workers_rest() {
  Busy busy;
  check(!busy.engine->rests(), "an op runs");
  auto var = make_ref<IntVar>();
  busy.gate.open();
  while (!busy.engine->rests()) sleep_ms(1);
  bool rested = false;
  const GuestScope guest(*busy.engine);
  push(*busy.engine, brief(writes(op([&] { rested = busy.engine->rests(); }), {var})));
  busy.engine->wait_for_var(*var, {});
  check(rested, "while the guest ran it");
}

/// As after a pause: what is recorded wakes a worker that finds nothing to take.
void who_looks_at_the_window_rests() {
  Gate gate;
  auto engine = make_threaded_engine(1);
  std::atomic<bool> blocks{false};
  engine->set_hungry([&](QueueId) {
    if (blocks.exchange(false)) gate.wait();
    return false;
  });
  engine->start();
  push(*engine, op([] {}));
  while (!engine->has_idle_worker()) sleep_ms(1);
  blocks = true;
  engine->nudge();
  gate.until_entered();
  const bool idle = engine->has_idle_worker(), rests = engine->rests();
  gate.open();
  check(!idle, "it is not idle");
  check(rests, "it has no op");
}

/// An engine with a var to wait for until one leaves, and how many guests are as its threads are.
struct LongWait {
  LongWait() {
    engine->set_guest_hooks([this] { ++inside; }, [this] { --inside; });
    auto late = writes(op([this] { gate.wait(); }), {never});
    late->queue = QueueId::python;
    push(*engine, late);
  }
  ~LongWait() { gate.open(); }
  Gate gate;
  std::atomic<int> inside{0};
  Ref<IntVar> never = make_ref<IntVar>();
  std::unique_ptr<Engine> engine = started(1);
};

/// While it calls back, a guest may be away for long: ops run elsewhere, and the hooks have ended.
void interrupted_guests() {
  LongWait wait;
  Engine* const engine = wait.engine.get();
  auto var = make_ref<IntVar>();
  const GuestScope guest(*engine);
  int polls = 0;
  const WaitResult result = engine->wait_for_var(*wait.never, [&] {
    same(wait.inside.load(), 0, "hooks ended");
    push(*engine, brief(add(var)));
    while (var->pending()) sleep_ms(1);  // a worker runs it
    return ++polls == 3;
  });
  check(result == WaitResult::interrupted, "interrupted");
  same(var->value, 3u, "value");
}

/// What a guest calls back may wait in turn: that is another visit, which ends before it returns.
void guests_whose_owners_wait() {
  Gate busy;  // (it outlives the engine)
  LongWait wait;
  Engine* const engine = wait.engine.get();
  auto var = make_ref<IntVar>();
  push(*engine, op([&] { busy.wait(); }));
  busy.until_entered();  // so that what is brief is the guest's
  const GuestScope guest(*engine);
  push(*engine, brief(add(var)));
  int polls = 0;
  const WaitResult result = engine->wait_for_var(*wait.never, [&] {
    same(wait.inside.load(), 0, "hooks ended");
    {
      const GuestScope nested(*engine);
      push(*engine, brief(add(var)));
      engine->wait_for_var(*var, {});
    }
    same(wait.inside.load(), 0, "those of what it waited for, too");
    return ++polls == 3;
  });
  check(result == WaitResult::interrupted, "interrupted");
  same(var->value, 4u, "value");
  busy.open();
}

/// Ops that are said to be brief and wait all the same.
void guests_that_wait_within_an_op() {
  auto engine = started(1);
  auto outer = make_ref<IntVar>(), inner = make_ref<IntVar>();
  const GuestScope guest(*engine);
  const auto caller = std::this_thread::get_id();
  push(*engine, brief(writes(op([&] {
                               const GuestScope nested(*engine);
                               push(*engine, brief(add(inner)));
                               if (std::this_thread::get_id() != caller)
                                 return;  // (the only worker cannot wait for itself)
                               engine->wait_for_var(*inner, {});
                               ++outer->value;
                             }),
                             {outer})));
  engine->wait_for_var(*outer, {});
  engine->wait_for_all({});
  same(inner->value, 1u, "inner");
}

void guests_that_run_their_own_op() {
  Busy busy;
  auto var = make_ref<IntVar>();
  std::thread::id before;
  const GuestScope guest(*busy.engine);
  push(*busy.engine, brief(add(var, &before)));
  push_and_run(*busy.engine, add(var));
  same(var->value, 2u, "value");
  check(before == std::this_thread::get_id(), "what stood before it ran here");
}

/// Nothing is lost between workers that fall asleep and guests that come and go: a lost wake-up
/// hangs.
void guests_come_and_go() {
  for (unsigned workers : {1u, 2u, 4u}) {
    auto engine = started(workers);
    constexpr int kThreads = 3, kVars = 4;
    const int rounds = scaled(2000);
    std::vector<Ref<IntVar>> vars;
    for (int i = 0; i < kVars; ++i) vars.push_back(make_ref<IntVar>());
    {
      std::vector<std::jthread> threads;
      for (int t = 0; t < kThreads; ++t)
        threads.emplace_back([&, t] {
          std::mt19937 random(t);
          const TimeBudget time;
          for (int i = 0; i < rounds && time.is_left(); ++i) {
            const auto push_some = [&] {
              std::vector<Ref<Op>> ops;
              for (unsigned n = random() % 8; n > 0; --n) {
                ops.push_back(add(vars[random() % kVars]));
                ops.back()->brief = random() % 4 != 0;
                if (random() % 16 == 0) ops.back()->queue = QueueId::python;
              }
              if (!ops.empty()) push(*engine, ops);
            };
            if (random() % 2) push_some();
            const GuestScope guest(*engine);
            push_some();
            bool leave = random() % 8 == 0;
            if (random() % 4 == 0)
              engine->wait_for_all([&] { return leave; });
            else
              engine->wait_for_var(*vars[random() % kVars], [&] { return leave; });
          }
        });
    }
    engine->wait_for_all({});
    const Counters counters = engine->counters();
    uint64_t sum = 0;
    for (auto& var : vars) sum += var->value;
    same(sum, counters.pushed, "every op once");
    same(counters.pending_ops, 0u, "pending");
  }
}

/// The engine stops and starts, or changes its workers, while guests run ops.
void guests_and_stops() {
  auto engine = started(2);
  std::atomic<bool> over{false};
  std::jthread other([&] {
    for (unsigned i = 0; !over; ++i) {
      if (i % 3 == 0) {
        engine->stop();
        engine->start();
      } else {
        engine->set_num_workers(1 + i % 2);
      }
      sleep_ms(1);
    }
  });
  auto var = make_ref<IntVar>();
  const int rounds = scaled(10000);
  const TimeBudget time;
  for (int i = 0; i < rounds && time.is_left(); ++i) {
    const GuestScope guest(*engine);
    push(*engine, {brief(add(var)), brief(add(var)), add(var)});
    engine->wait_for_var(*var, {});
    same(var->value, 3u * (i + 1), "value");
  }
  over = true;
}

}  // namespace
}  // namespace lazyeng::test

int main(int argc, char** argv) {
  using namespace lazyeng::test;
  return run_tests(argc, argv,
                   {{"brief ops run on the waiting thread", brief_ops_run_on_the_waiting_thread},
                    {"others are left to workers", others_are_left_to_workers},
                    {"workers rest", workers_rest},
                    {"who looks at the window rests", who_looks_at_the_window_rests},
                    {"interrupted guests", interrupted_guests},
                    {"guests whose owners wait", guests_whose_owners_wait},
                    {"guests that wait within an op", guests_that_wait_within_an_op},
                    {"guests that run their own op", guests_that_run_their_own_op},
                    {"guests come and go", guests_come_and_go},
                    {"guests and stops", guests_and_stops}});
}
