// tests/cpp/ops.h: ops, gates and engines that the C++ tests share.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "csrc/engine/engine.h"
#include "tests/cpp/check.h"

namespace lazyeng::test {

using namespace lazyeng::engine;
using std::chrono::milliseconds;

struct TestFailure final : Failure {
  explicit TestFailure(int id) : id(id) {}
  int id;
};

inline FailurePtr make_failure(int id) { return std::make_shared<TestFailure>(id); }

/// 0 for none.
inline int id_of(const FailurePtr& failure) {
  return failure ? static_cast<const TestFailure&>(*failure).id : 0;
}

/// A var with a value that is not atomic: TSan sees an engine that lets two writes overlap.
class IntVar final : public Var {
 public:
  explicit IntVar(Kind kind = Kind::data) : Var(kind) {}
  uint64_t value = 0;
};

class FunctionOp final : public Op {
 public:
  explicit FunctionOp(std::function<FailurePtr()> body) : body_(std::move(body)) {}
  FailurePtr run() noexcept override { return body_(); }

 private:
  std::function<FailurePtr()> body_;
};

inline Ref<Op> fallible(std::function<FailurePtr()> body) {
  return make_ref<FunctionOp>(std::move(body));
}

inline Ref<Op> op(std::function<void()> body) {
  return fallible([body = std::move(body)]() -> FailurePtr {
    body();
    return nullptr;
  });
}

inline Ref<Op> reads(Ref<Op> op, std::initializer_list<Ref<Var>> vars) {
  for (const Ref<Var>& var : vars) op->add_read(var);
  return op;
}

inline Ref<Op> writes(Ref<Op> op, std::initializer_list<Ref<Var>> vars, bool overwrites = false) {
  for (const Ref<Var>& var : vars) op->add_write(var, overwrites);
  return op;
}

inline void push(Engine& engine, std::vector<Ref<Op>> ops) {
  for (const Ref<Op>& op : ops) engine.admit(op->cost_bytes);
  engine.push(std::span(ops));
}

inline void push(Engine& engine, Ref<Op> op) {
  engine.admit(op->cost_bytes);
  engine.push(std::move(op));
}

inline void push_and_run(Engine& engine, Ref<Op> op) {
  engine.admit(op->cost_bytes);
  engine.push_and_run(std::move(op), {});
}

inline std::unique_ptr<Engine> started(unsigned workers) {
  auto engine = workers == 0 ? make_naive_engine() : make_threaded_engine(workers);
  engine->start();
  return engine;
}

/// Ops wait in it until the test opens it.
class Gate {
 public:
  ~Gate() { open(); }  // an exception out of a test must not leave the engine stuck
  void open() {
    open_ = true;
    open_.notify_all();
  }
  void wait() {
    entered_ = true;
    entered_.notify_all();
    open_.wait(false);
  }
  void until_entered() { entered_.wait(false); }

 private:
  std::atomic<bool> open_{false}, entered_{false};
};

inline void sleep_ms(int ms) { std::this_thread::sleep_for(milliseconds(ms)); }

}  // namespace lazyeng::test
