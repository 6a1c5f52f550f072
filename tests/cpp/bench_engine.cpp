// tests/cpp/bench_engine.cpp: what the engine costs per op, in nanoseconds.
//
// Every op is empty. "push 1" pushes ops one by one, "push 64" in batches. Ops are made beforehand.
// The best of several rounds is shown; only ratios taken in one run count on a shared machine.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "csrc/engine/engine.h"

using namespace lazyeng;
using namespace lazyeng::engine;

namespace {

class Empty final : public Op {
 public:
  FailurePtr run() noexcept override { return nullptr; }
};

class Busy final : public Op {
 public:
  FailurePtr run() noexcept override {
    const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(500);
    while (std::chrono::steady_clock::now() < end) {
    }
    return nullptr;
  }
};

using Ops = std::vector<Ref<Op>>;

template <class T = Empty>
Ops independent(size_t n) {  // an output each, and two inputs that nobody writes
  Ops ops;
  std::vector<Ref<Var>> inputs;
  for (int i = 0; i < 64; ++i) inputs.push_back(make_ref<Var>());
  for (size_t i = 0; i < n; ++i) {
    auto op = make_ref<T>();
    op->add_read(inputs[i % 64]);
    op->add_read(inputs[(i * 7 + 1) % 64]);
    op->add_write(make_ref<Var>(), true);
    ops.push_back(op);
  }
  return ops;
}

template <class T = Empty>
Ops chain(size_t n) {  // each reads what the one before has written
  Ops ops;
  auto last = make_ref<Var>();
  for (size_t i = 0; i < n; ++i) {
    auto op = make_ref<T>();
    op->add_read(last);
    last = make_ref<Var>();
    op->add_write(last, true);
    ops.push_back(op);
  }
  return ops;
}

Ops in_place(size_t n) {  // each overwrites the same var
  Ops ops;
  auto var = make_ref<Var>();
  for (size_t i = 0; i < n; ++i) {
    auto op = make_ref<Empty>();
    op->add_write(var, true);
    ops.push_back(op);
  }
  return ops;
}

Ops fan_out(size_t n) {  // one write, a hundred reads of it, and again
  Ops ops;
  auto source = make_ref<Var>();
  for (size_t i = 0; i < n; ++i) {
    auto op = make_ref<Empty>();
    if (i % 101 == 0) {
      op->add_write(source, true);
    } else {
      op->add_read(source);
      op->add_write(make_ref<Var>(), true);
    }
    ops.push_back(op);
  }
  return ops;
}

double measure(Engine& engine, const std::function<Ops(size_t)>& make, size_t n, size_t batch) {
  double best = 1e30;
  for (int round = 0; round < 7; ++round) {
    Ops ops = make(n);
    for (size_t i = 0; i < n; ++i) engine.admit(0);
    const auto start = std::chrono::steady_clock::now();
    for (size_t i = 0; i < n; i += batch)
      engine.push(std::span(ops).subspan(i, std::min(batch, n - i)));
    engine.wait_for_all({});
    const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - start;
    best = std::min(best, time.count() / double(n));
  }
  return best;
}

double measure_wait(Engine& engine) {  // push one op and wait for its output
  constexpr int kRounds = 2000;
  double best = 1e30;
  for (int round = 0; round < 5; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kRounds; ++i) {
      auto op = make_ref<Empty>();
      auto var = make_ref<Var>();
      op->add_write(var, true);
      engine.admit(0);
      engine.push(Ref<Op>(std::move(op)));
      engine.wait_for_var(*var, {});
    }
    const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - start;
    best = std::min(best, time.count() / kRounds);
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  const size_t n = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 50000;
  const std::string only = argc > 2 ? argv[2] : "";
  struct Case {
    const char* name;
    std::function<Ops(size_t)> make;
    size_t batch;
  };
  const Case cases[] = {
      {"independent, push 1", independent<>, 1},
      {"independent, push 64", independent<>, 64},
      {"chain, push 1", chain<>, 1},
      {"chain, push 64", chain<>, 64},
      {"in place, push 64", in_place, 64},
      {"fan-out 100, push 64", fan_out, 64},
      {"500 ns ops, push 1", independent<Busy>, 1},
      {"500 ns ops, push 64", independent<Busy>, 64},
      {"500 ns chain, push 64", chain<Busy>, 64},
  };
  std::unique_ptr<Engine> engines[] = {make_naive_engine(), make_threaded_engine(1),
                                       make_threaded_engine(2)};
  std::printf("%-24s %10s %10s %10s   (ns per op)\n", "", "naive", "1 worker", "2 workers");
  for (auto& engine : engines) engine->start();
  for (const Case& one : cases) {
    if (std::string(one.name).find(only) == std::string::npos) continue;
    std::printf("%-24s", one.name);
    for (auto& engine : engines) std::printf(" %10.0f", measure(*engine, one.make, n, one.batch));
    std::printf("\n");
  }
  std::printf("%-24s", "push, wait for it");
  for (auto& engine : engines) std::printf(" %10.0f", measure_wait(*engine));
  std::printf("\n");
}
