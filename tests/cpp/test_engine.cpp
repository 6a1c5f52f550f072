// tests/cpp/test_engine.cpp: where, when and in which order ops run.
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <random>
#include <thread>

#include "tests/cpp/ops.h"

using namespace lazyeng;
using namespace lazyeng::test;

namespace {

std::string thread_name() {
  char name[16] = "";
  pthread_getname_np(pthread_self(), name, sizeof(name));
  return name;
}

Ref<Op> on(QueueId queue, Ref<Op> op, int priority = 0) {
  op->queue = queue;
  op->priority = static_cast<int16_t>(priority);
  return op;
}

QueueId device(int n) { return static_cast<QueueId>(int(QueueId::first_device) + n); }

// Two threads push (read A, write B) and (read B, write A): MXNet deadlocks here.
void crossed_pushes() {
  const int rounds = scaled(100000);
  for (unsigned workers : {0u, 1u, 2u}) {
    auto engine = started(workers);
    auto a = make_ref<IntVar>(), b = make_ref<IntVar>();
    auto pusher = [&](Ref<IntVar> from, Ref<IntVar> to) {
      for (int i = 0; i < rounds; ++i) {
        if (engine->above_limits()) engine->wait_below_limits({});
        push(*engine, writes(reads(op([=] { to->value += from->value + 1; }), {from}), {to}));
      }
    };
    std::thread other(pusher, b, a);
    pusher(a, b);
    other.join();
    engine->wait_for_all({});
    same(engine->counters().executed, uint64_t(rounds) * 2, "executed");
  }
}

void priorities() {
  std::mt19937 random(7);
  for (QueueId queue : {QueueId::cpu, QueueId::python, device(0)}) {
    auto engine = started(1);
    Gate gate;
    push(*engine, on(queue, op([&] { gate.wait(); })));
    gate.until_entered();
    std::vector<std::pair<int, int>> order, expected;  // minus priority, push order
    std::vector<Ref<Op>> batch;
    for (int i = 0; i < 1000; ++i) {
      const int priority = int(random() % 7) - 3;
      expected.push_back({-priority, i});
      batch.push_back(
          on(queue, op([&, i, priority] { order.push_back({-priority, i}); }), priority));
      if (random() % 3 == 0) push(*engine, std::exchange(batch, {}));
    }
    push(*engine, std::exchange(batch, {}));
    gate.open();
    engine->wait_for_all({});
    std::sort(expected.begin(), expected.end());
    check(order == expected, "ready ops run by priority, then in push order");
  }
}

// An op made ready by another goes on at once on its worker, but not past a higher priority; on a
// queue other than the CPU pool not past an earlier push either.
void continuations() {
  for (QueueId queue : {QueueId::cpu, QueueId::python}) {
    auto engine = started(1);
    auto var = make_ref<IntVar>();
    Gate gate;
    std::string order;
    push(*engine, on(queue, writes(op([&] { gate.wait(); }), {var})));
    gate.until_entered();
    push(*engine, on(queue, op([&] { order += 'a'; })));
    push(*engine, on(queue, reads(op([&] { order += 'c'; }), {var})));
    push(*engine, on(queue, reads(op([&] { order += 'd'; }), {var})));
    push(*engine, on(queue, op([&] { order += 'h'; }), 5));
    gate.open();
    engine->wait_for_all({});
    same(order, "hacd", "order");

    order.clear();
    Gate second;
    push(*engine, on(queue, writes(op([&] { second.wait(); }), {var})));
    second.until_entered();
    push(*engine, on(queue, op([&] { order += 'a'; })));
    push(*engine, on(queue, reads(op([&] { order += 'c'; }), {var})));
    second.open();
    engine->wait_for_all({});
    same(order, queue == QueueId::cpu ? "ca" : "ac", "order of equal priorities");
  }
}

void separate_queues() {
  std::mutex mutex;
  std::vector<std::string> inits;
  auto engine = make_threaded_engine(2);
  engine->set_thread_init([&](QueueId queue, unsigned index) {
    std::lock_guard lock(mutex);
    inits.push_back(std::to_string(int(queue)) + "/" + std::to_string(index));
  });
  engine->start();
  std::string python, stream, other;
  Gate gate;
  push(*engine, on(QueueId::python, op([&] {
                     python = thread_name();
                     gate.wait();
                   })));
  push(*engine, on(device(0), op([&] { stream = thread_name(); })));
  push(*engine, on(device(3), op([&] { other = thread_name(); })));
  auto a = make_ref<IntVar>();
  std::string where[4];
  push(*engine, writes(op([&] { where[0] = thread_name(); }), {a}));
  push(*engine, on(device(0), writes(op([&] { where[1] = thread_name(); }), {a})));
  push(*engine, on(device(0), writes(op([&] { where[2] = thread_name(); }), {a})));
  push(*engine, writes(op([&] { where[3] = thread_name(); }), {a}));
  engine->wait_for_var(*a, {});  // while the python queue is stuck
  gate.open();
  engine->wait_for_all({});
  same(python, "lazyeng-python", "python thread");
  same(stream, "lazyeng-dev-0", "first device thread");
  same(other, "lazyeng-dev-3", "other device thread");
  same(where[0].substr(0, 12), "lazyeng-cpu-", "cpu thread");
  same(where[1], "lazyeng-dev-0", "after cpu");
  same(where[2], "lazyeng-dev-0", "after the device");
  same(where[3].substr(0, 12), "lazyeng-cpu-", "cpu thread again");
  // (The second worker has had nothing to do, and may not have begun.)
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  const auto all_began = [&] {
    std::lock_guard lock(mutex);
    return inits.size() >= 5;
  };
  while (!all_began() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  std::lock_guard lock(mutex);
  std::sort(inits.begin(), inits.end());
  std::string all;
  for (auto& init : inits) all += init + " ";
  same(all, "0/0 0/1 1/0 4/0 7/0 ", "thread inits");
}

// All workers run at the same time, and no more than these.
void worker_counts() {
  for (int workers : {1, 2, 8}) {
    auto engine = started(workers);
    std::atomic<int> inside{0}, most{0}, passed{0};
    for (int i = 0; i < workers * 20; ++i) {
      push(*engine, op([&] {
        const int now = ++inside;
        for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
        }
        while (most < workers) std::this_thread::yield();  // hangs if a worker is missing
        ++passed;
        --inside;
      }));
    }
    engine->wait_for_all({});
    same(most.load(), workers, "ops at the same time");
    same(passed.load(), workers * 20, "ops");
    same(engine->num_workers(), unsigned(workers), "num_workers");
  }
}

// Reads of one version run side by side, those that waited for it too.
void reads_side_by_side() {
  auto engine = started(3);
  auto var = make_ref<IntVar>();
  Gate gate;
  std::atomic<int> inside{0};
  push(*engine, writes(op([&] { gate.wait(); }), {var}));
  for (int i = 0; i < 3; ++i) {
    push(*engine, reads(op([&] {
                          ++inside;
                          while (inside < 3) std::this_thread::yield();
                        }),
                        {var}));
    if (i == 1) gate.open();
  }
  engine->wait_for_all({});
}

// Sleeping workers are all woken for a batch, again and again.
void batches_wake_all() {
  constexpr int kWorkers = 4;
  auto engine = started(kWorkers);
  for (int round = 0; round < 20; ++round) {
    sleep_ms(2);
    std::atomic<int> inside{0};
    std::vector<Ref<Op>> batch;
    for (int i = 0; i < kWorkers; ++i)
      batch.push_back(op([&] {
        ++inside;
        while (inside < kWorkers) std::this_thread::yield();
      }));
    push(*engine, std::move(batch));
    engine->wait_for_all({});
  }
}

void long_chains() {  // a recursion on completion would overflow the stack
  constexpr int kLength = 100000;
  for (unsigned workers : {0u, 1u, 2u}) {
    auto engine = started(workers);
    auto var = make_ref<IntVar>();
    engine->stop();  // so that the whole chain waits
    std::vector<Ref<Op>> ops;
    for (int i = 0; i < kLength; ++i)
      ops.push_back(writes(op([&, i] { var->value += var->value == uint64_t(i); }), {var}));
    push(*engine, std::move(ops));
    // The marks of waits complete without a thread; 100,000 of them in one var's queue.
    std::vector<Var*> many(kLength, var.get());
    engine->wait_for_vars(many, [] { return true; });
    std::thread([&] { engine->start(); }).join();  // runs the ops itself if the engine is naive
    engine->wait_for_all({});
    same(var->value, uint64_t(kLength), "links run in order");
  }
}

void ops_push_ops() {
  for (unsigned workers : {1u, 2u}) {
    auto engine = started(workers);
    auto var = make_ref<IntVar>();
    std::function<void()> next = [&] {
      if (++var->value < 100000) push(*engine, writes(op(next), {var}));
    };
    push(*engine, writes(op(next), {var}));
    engine->stop();  // finishes what its ops push
    same(var->value, 100000u, "ops");
  }
  auto engine = started(0);
  auto var = make_ref<IntVar>();
  push(*engine, writes(op([&] {
                         var->value = 1;
                         push(*engine, writes(op([&] { var->value *= 10; }), {var}));
                         var->value += 1;
                       }),
                       {var}));
  same(var->value, 20u, "the inner op waits for the outer one");
}

void push_and_run_from_threads() {
  for (unsigned workers : {0u, 1u, 2u}) {
    auto engine = started(workers);
    constexpr int kThreads = 4, kVars = 5;
    const int rounds = scaled(10000);
    std::vector<Ref<IntVar>> vars;
    for (int i = 0; i < kVars; ++i) vars.push_back(make_ref<IntVar>());
    std::atomic<int> elsewhere{0};
    std::atomic<uint64_t> expected{0};
    {
      std::vector<std::jthread> threads;
      for (int t = 0; t < kThreads; ++t)
        threads.emplace_back([&, t] {
          const TimeBudget time;
          for (int i = 0; i < rounds && time.is_left(); ++i) {
            auto &a = vars[(t + i) % kVars], &b = vars[(t + 3 * i + 1) % kVars];
            const auto me = std::this_thread::get_id();
            auto one = op([&, me] {
              a->value += 1;
              b->value += 1;
              elsewhere += std::this_thread::get_id() != me;
            });
            push_and_run(*engine, writes(one, {a, b}));
            if (i % 4 == 0) push(*engine, writes(op([&] { ++a->value; }), {a}));
            expected += i % 4 == 0 ? 3 : 2;
          }
        });
    }
    engine->wait_for_all({});
    uint64_t sum = 0;
    for (auto& var : vars) sum += var->value;
    same(sum, expected.load(), "sum");
    same(elsewhere.load(), 0, "ops not run by their caller");
  }
}

/// Lacks something the first time, as an op that runs out of memory does.
class SecondTry final : public Op {
 public:
  explicit SecondTry(std::function<void(bool second)> body) : body_(std::move(body)) {}
  FailurePtr run() noexcept override {
    body_(!run_again_alone());
    return nullptr;
  }

 private:
  std::function<void(bool second)> body_;
};

void second_tries_run_alone() {
  for (unsigned workers : {0u, 1u, 2u, 8u}) {
    auto engine = started(workers);
    std::atomic<int> running{0}, disturbed{0}, first{0}, second{0};
    auto result = make_ref<IntVar>(), unrelated = make_ref<IntVar>();
    const auto busy = [&] {
      ++running;
      sleep_ms(1);
      --running;
    };
    const auto lacking = [&](bool again) {
      ++(again ? second : first);
      if (again) disturbed += running != 0;
    };
    // Ops that are pushed while one has its second try may begin beside it: so all are queued
    // first.
    std::atomic<bool> all_pushed{workers == 0};  // (0: the naive engine runs each at once)
    for (unsigned i = 0; i < workers; ++i)
      push(*engine, op([&] {
        while (!all_pushed) sleep_ms(1);
      }));
    for (int i = 0; i < 10; ++i) {
      push(*engine, op(busy));
      push(*engine, writes(make_ref<SecondTry>(lacking), {result}));
      push(*engine, writes(reads(op([&] { ++unrelated->value; }), {result}), {unrelated}));
      push(*engine, op(busy));
    }
    all_pushed = true;
    engine->wait_for_all({});
    push_and_run(*engine, make_ref<SecondTry>(lacking));
    same(first.load(), 11, "first tries");
    same(second.load(), 11, "second tries");
    same(disturbed.load(), 0, "second tries beside others");
    same(unrelated->value, 10u, "ops behind them");
    same(engine->counters().executed, uint64_t(41 + workers), "executed");
  }
}

/// Begins something in order, and waits for its end elsewhere, as a collective does.
class TwoParts final : public Op {
 public:
  TwoParts(Ref<Var> order, std::function<void()> first, std::function<FailurePtr()> second)
      : order_(std::move(order)), first_(std::move(first)), second_(std::move(second)) {
    queue = QueueId::collectives;
    add_write(order_, true);
  }
  FailurePtr run() noexcept override {
    if (std::exchange(begun_, true)) return second_();
    first_();
    go_on(QueueId::waits, order_.get());
    return nullptr;
  }

 private:
  const Ref<Var> order_;
  const std::function<void()> first_;
  const std::function<FailurePtr()> second_;
  bool begun_ = false;
};

// All begin, in order, although none has ended; then they end in the opposite order.
void ops_in_two_parts() {
  constexpr int kOps = 20;
  auto engine = started(1);
  auto order = make_ref<IntVar>(Var::Kind::resource);
  for (int round = 0; round < 3; ++round) {
    std::vector<Gate> gates(kOps);
    std::vector<Ref<IntVar>> results;
    std::vector<int> begun;
    std::atomic<int> readers{0};
    for (int i = 0; i < kOps; ++i) {
      results.push_back(make_ref<IntVar>());
      push(*engine, writes(make_ref<TwoParts>(
                               order, [&begun, i] { begun.push_back(i); },
                               [&gates, i]() -> FailurePtr {
                                 gates[i].wait();
                                 return i % 3 == 0 ? make_failure(i + 1) : nullptr;
                               }),
                           {results.back()}));
      push(*engine, reads(op([&readers] { ++readers; }), {results.back()}));
    }
    for (Gate& gate : gates) gate.until_entered();
    engine->wait_for_var(*order, {});
    same(begun.size(), size_t(kOps), "begun");
    check(std::is_sorted(begun.begin(), begun.end()), "they begin in the order of pushes");
    for (int i = kOps; i-- > 0;) {
      check(results[i]->pending(), "not ended");
      gates[i].open();
      engine->wait_for_var(*results[i], {});
      same(id_of(results[i]->failure()), i % 3 == 0 ? i + 1 : 0, "failure");
    }
    engine->wait_for_all({});
    same(readers.load(), kOps - (kOps + 2) / 3, "readers of what has not failed");
    same(engine->counters().pending_ops, uint64_t(0), "pending");
  }
  same(engine->counters().executed + engine->counters().skipped, uint64_t(6 * kOps), "ops");
  // On the calling thread, and with the engine that has no other.
  for (unsigned workers : {0u, 1u}) {
    auto other = started(workers);
    int first = 0, second = 0;
    auto part = [&] {
      return make_ref<TwoParts>(
          order, [&] { ++first; },
          [&]() -> FailurePtr {
            ++second;
            return nullptr;
          });
    };
    push_and_run(*other, part());
    push(*other, part());
    other->wait_for_all({});
    same(first, 2, "first parts");
    same(second, 2, "second parts");
  }
}

}  // namespace

int main(int argc, char** argv) {
  pthread_attr_t small_stacks;  // so that a recursion shows
  pthread_attr_init(&small_stacks);
  pthread_attr_setstacksize(&small_stacks, 1 << 20);
  pthread_setattr_default_np(&small_stacks);
  return run_tests(argc, argv,
                   {{"crossed pushes from two threads", crossed_pushes},
                    {"priorities", priorities},
                    {"continuations", continuations},
                    {"separate queues", separate_queues},
                    {"1, 2 and 8 workers", worker_counts},
                    {"reads run side by side", reads_side_by_side},
                    {"batches wake all workers", batches_wake_all},
                    {"chains of 100,000 ops", long_chains},
                    {"ops push ops", ops_push_ops},
                    {"push_and_run from several threads", push_and_run_from_threads},
                    {"second tries run alone", second_tries_run_alone},
                    {"ops in two parts", ops_in_two_parts}});
}
