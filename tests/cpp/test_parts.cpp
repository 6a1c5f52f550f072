// tests/cpp/test_parts.cpp: ops that several threads do in parts (csrc/engine/parts.h).
#include <random>
#include <set>

#include "tests/cpp/ops.h"

namespace lazyeng::test {
namespace {

/// Counts calls of each part, not atomically: TSan sees a part that is called twice at once, and
/// an owner that looks too early.
struct Called {
  explicit Called(unsigned count) : times(count), by(count) {}
  void operator()(unsigned i) {
    ++times[i];
    by[i] = std::this_thread::get_id();
  }
  void check_once() const {
    for (size_t i = 0; i < times.size(); ++i) same(times[i], 1, "calls of a part");
  }
  std::vector<int> times;
  std::vector<std::thread::id> by;
};

void nobody_is_waited_for() {
  for (unsigned workers : {0u, 1u}) {
    auto engine = started(workers);
    Gate gate;
    if (workers) push(*engine, op([&] { gate.wait(); }));
    if (workers) gate.until_entered();
    Called called(5);
    engine->run_in_parts(5, [&](unsigned i) { called(i); });
    called.check_once();
    for (const auto& id : called.by) check(id == std::this_thread::get_id(), "here");
  }
}

/// The owner keeps its first part until another thread has taken one.
void until_helped(std::atomic<int>& begun, unsigned i) {
  ++begun;
  if (i == 0)
    while (begun < 2) std::this_thread::yield();
}

void idle_workers_help() {
  auto engine = started(2);
  auto var = make_ref<IntVar>();
  for (int round = 0; round < scaled(50); ++round) {
    if (round % 8 == 0) sleep_ms(3);  // they sleep
    Called called(2);
    push(*engine, writes(op([&] {
                           std::atomic<int> begun{0};
                           engine->run_in_parts(2, [&](unsigned i) {
                             called(i);
                             until_helped(begun, i);
                           });
                         }),
                         {var}));
    engine->wait_for_var(*var, {});
    called.check_once();
    check(called.by[0] != called.by[1], "two workers");
  }
}

/// Also one that had gone to sleep, and one that comes while parts are open already.
void waiting_threads_help() {
  auto engine = started(1);
  std::atomic<int> inside{0};
  engine->set_guest_hooks([&] { ++inside; }, [&] { --inside; });
  auto var = make_ref<IntVar>();
  const auto here = std::this_thread::get_id();
  int unprepared = 0;  // parts that ran here outside of the hooks
  for (int round = 0; round < scaled(60); ++round) {
    Called called(2);
    push(*engine, writes(op([&] {
                           if (round % 3 == 0) sleep_ms(1);
                           std::atomic<int> begun{0};
                           engine->run_in_parts(2, [&](unsigned i) {
                             called(i);
                             if (std::this_thread::get_id() == here) unprepared += inside != 1;
                             until_helped(begun, i);
                           });
                         }),
                         {var}));
    if (round % 3 == 1) sleep_ms(1);
    const GuestScope guest(*engine);
    engine->wait_for_var(*var, {});
    called.check_once();
    check((called.by[0] == here) != (called.by[1] == here), "one part here");
  }
  same(unprepared, 0, "unprepared");
  same(inside.load(), 0, "hooks ended");
}

void free_threads_are_counted() {
  auto engine = started(2);
  while (engine->num_free() != 2) sleep_ms(1);
  Gate gate;
  auto var = make_ref<IntVar>();
  push(*engine, writes(op([&] { gate.wait(); }), {var}));
  gate.until_entered();
  while (engine->num_free() != 1) sleep_ms(1);
  std::jthread waits([&] {
    const GuestScope guest(*engine);
    engine->wait_for_var(*var, {});
  });
  while (engine->num_free() != 2) sleep_ms(1);
  int counted = 0;  // it sleeps, but for its polls: the count is a hint while it wakes up
  for (int i = 0; i < 50; ++i) {
    sleep_ms(1);
    counted += engine->num_free() == 2;
  }
  check(counted > 10, "a thread that sleeps is free: " + std::to_string(counted) + " of 50 looks");
  gate.open();
  waits.join();
  while (engine->num_free() != 2) sleep_ms(1);
}

/// Several owners at once, helpers that come and go, workers that are replaced. A lost part hangs.
void owners_and_helpers() {
  for (unsigned workers : {1u, 2u, 4u}) {
    auto engine = started(workers);
    constexpr int kThreads = 3, kVars = 4;
    const int rounds = scaled(600);
    std::vector<Ref<IntVar>> vars;
    for (int i = 0; i < kVars; ++i) vars.push_back(make_ref<IntVar>());
    const auto in_parts = [&](const Ref<IntVar>& var, unsigned count) {
      return writes(op([&engine, var, count] {
                      Called called(count);
                      engine->run_in_parts(count, [&](unsigned i) { called(i); });
                      called.check_once();
                      ++var->value;
                    }),
                    {var});
    };
    std::atomic<uint64_t> pushed{0};
    {
      std::vector<std::jthread> threads;
      for (int t = 0; t < kThreads; ++t)
        threads.emplace_back([&, t] {
          std::mt19937 random(t);
          const TimeBudget time;
          for (int i = 0; i < rounds && time.is_left(); ++i) {
            for (unsigned n = random() % 4; n > 0; --n, ++pushed)
              push(*engine, in_parts(vars[random() % kVars], 1 + random() % 6));
            if (random() % 64 == 0) engine->set_num_workers(1 + random() % workers);
            const GuestScope guest(*engine);
            if (random() % 2 == 0) engine->wait_for_var(*vars[random() % kVars], {});
          }
        });
    }
    engine->wait_for_all({});
    uint64_t sum = 0;
    for (auto& var : vars) sum += var->value;
    same(sum, pushed.load(), "every op once");
  }
}

}  // namespace
}  // namespace lazyeng::test

int main(int argc, char** argv) {
  using namespace lazyeng::test;
  return run_tests(argc, argv,
                   {{"nobody is waited for", nobody_is_waited_for},
                    {"idle workers help", idle_workers_help},
                    {"waiting threads help", waiting_threads_help},
                    {"free threads are counted", free_threads_are_counted},
                    {"owners and helpers", owners_and_helpers}});
}
