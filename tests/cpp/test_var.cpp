// tests/cpp/test_var.cpp: claims, versions and failures of vars.
#include "csrc/engine/dependency_tracker.h"
#include "tests/cpp/ops.h"

using namespace lazyeng;
using namespace lazyeng::test;

namespace {

// Fails a var, then pushes an op made by `claim`. Returns whether that op was run, not skipped.
bool runs_on_failed_var(const std::function<void(Op&, Ref<Var>)>& claim) {
  auto engine = started(0);
  auto var = make_ref<IntVar>();
  push(*engine, writes(fallible([] { return make_failure(1); }), {var}));
  bool ran = false;
  auto second = op([&] { ran = true; });
  claim(*second, var);
  push(*engine, second);
  same(id_of(var->failure()), ran && second ? 0 : 1, "failure afterwards");
  return ran;
}

void duplicates_merge() {
  check(runs_on_failed_var([](Op& op, Ref<Var> v) { op.add_write(v, true); }), "overwrite runs");
  check(!runs_on_failed_var([](Op& op, Ref<Var> v) { op.add_write(v, false); }), "partial skips");
  check(!runs_on_failed_var([](Op& op, Ref<Var> v) {
    op.add_read(v);
    op.add_write(v, true);
  }),
        "read and overwrite is no overwrite");
  check(!runs_on_failed_var([](Op& op, Ref<Var> v) {
    op.add_write(v, true);
    op.add_read(v);
  }),
        "overwrite and read is no overwrite");
  check(!runs_on_failed_var([](Op& op, Ref<Var> v) {
    op.add_write(v, true);
    op.add_write(v, false);
  }),
        "a partial write makes it partial");
  check(runs_on_failed_var([](Op& op, Ref<Var> v) {
          op.add_write(v, true);
          op.add_write(v, true);
        }),
        "two overwrites are one");
}

// 200,000 claims on 50,000 vars, each var once: comparing each with each would take minutes.
void many_claims() {
  auto engine = started(2);
  std::vector<Ref<IntVar>> vars;
  for (int i = 0; i < 50000; ++i) vars.push_back(make_ref<IntVar>());
  for (int round = 0; round < 3; ++round) {
    auto all = op([&] {
      for (auto& var : vars) ++var->value;
    });
    for (int again = 0; again < 4; ++again)
      for (auto& var : vars) again % 2 ? all->add_read(var) : all->add_write(var);
    push(*engine, all);
  }
  engine->wait_for_all({});
  for (auto& var : vars) same(var->value, 3u, "value");
}

void merged_claims_keep_order() {  // the cause is the first failed input, also in a sorted merge
  auto engine = started(0);
  std::vector<Ref<IntVar>> vars;
  for (int i = 0; i < 100; ++i) {
    vars.push_back(make_ref<IntVar>());
    push(*engine, writes(fallible([i] { return make_failure(i + 1); }), {vars.back()}));
  }
  auto out = make_ref<IntVar>();
  auto late = writes(op([] {}), {out});
  for (int i = 0; i < 100; ++i) late->add_read(vars[(i * 37 + 55) % 100]);
  for (int i = 99; i >= 0; --i) late->add_read(vars[(i * 37 + 55) % 100]);
  push(*engine, late);
  same(id_of(out->failure()), 56, "cause");
}

void failures_spread_and_stay() {
  auto engine = started(0);
  auto a = make_ref<IntVar>(), b = make_ref<IntVar>(), c = make_ref<IntVar>();
  int runs = 0;
  push(*engine, writes(fallible([] { return make_failure(7); }), {a}));
  push(*engine, writes(reads(op([&] { ++runs; }), {a}), {b}));
  push(*engine, writes(reads(op([&] { ++runs; }), {b}), {c}));
  push(*engine, reads(op([&] { ++runs; }), {c}));
  same(runs, 0, "ops run");
  same(id_of(c->failure()), 7, "failure of c");
  push(*engine, writes(op([&] { ++runs; }), {a}, true));
  same(runs, 1, "the overwrite runs");
  same(id_of(a->failure()), 0, "failure of a, overwritten");
  same(id_of(b->failure()), 7, "failure of b stays");
  push(*engine, writes(reads(op([&] { ++runs; }), {a}), {b}, true));
  same(id_of(b->failure()), 0, "failure of b, overwritten");
  const Counters counters = engine->counters();
  same(counters.executed, 3u, "executed");
  same(counters.skipped, 3u, "skipped");
  same(counters.pending_ops, 0u, "pending");
}

void resources_stay_usable() {
  auto engine = started(0);
  auto random = make_ref<IntVar>(Var::Kind::resource);
  auto a = make_ref<IntVar>(), b = make_ref<IntVar>(), c = make_ref<IntVar>();
  push(*engine, writes(fallible([] { return make_failure(1); }), {random, a}));
  same(id_of(a->failure()), 1, "data fails");
  same(id_of(random->failure()), 0, "the resource does not");
  push(*engine, writes(reads(op([] {}), {a}), {random}));  // skipped
  bool ran = false;
  push(*engine, writes(op([&] { ran = true; }), {random, b}));
  check(ran, "a failed draw does not poison later ones");
  check(!b->failure(), "b is fine");
}

void pending_ops_are_seen() {  // in order, the one that writes first; also while they complete
  auto engine = started(2);
  auto var = make_ref<IntVar>();
  Gate gate;
  const Ref<Op> runs = writes(op([&] { gate.wait(); }), {var});
  push(*engine, runs);
  const Ref<Op> read = reads(op([] {}), {var}), write = writes(op([] {}), {var});
  push(*engine, read);
  push(*engine, write);
  gate.until_entered();
  const std::vector<Ref<Op>> pending = var->pending_ops();
  check(pending == std::vector<Ref<Op>>{runs, read, write}, "what runs and waits");
  gate.open();
  for (int i = 0; i < 1000; ++i) {
    push(*engine, writes(op([] {}), {var}));
    var->pending_ops();
  }
  engine->wait_for_all({});
  check(var->pending_ops().empty(), "nothing is left at the end");
}

void a_wait_is_no_use() {  // nor while the thread that waits has not been told yet
  auto var = make_ref<IntVar>();
  DependencyTracker tracker;
  ReadyList ready;
  Ref<Op> write = writes(op([] {}), {var}), mark = reads(op([] {}), {var}),
          read = reads(op([] {}), {var});
  tracker.push(std::span(&write, 1), ready);
  tracker.append_mark(*mark, ready);
  check(!var->idle(), "a write stands before the mark");
  tracker.complete(*write, nullptr, ready);
  check(var->idle(), "the mark alone has its turn");
  tracker.push(std::span(&read, 1), ready);
  check(!var->idle(), "a read beside the mark");
  tracker.complete(*mark, nullptr, ready);
  check(!var->idle(), "the read alone");
  tracker.complete(*read, nullptr, ready);
  check(var->idle(), "nothing");
  for (Op* const each : {write.get(), mark.get(), read.get()}) each->release();
}

class SkipOp final : public Op {
 public:
  FailurePtr run() noexcept override { return nullptr; }
  FailurePtr skip(const FailurePtr& cause) noexcept override {
    return make_failure(id_of(cause) * 10);
  }
  void finish(const FailurePtr& failure) noexcept override {
    finished_with = id_of(failure);
    was_pending = out->pending();
    was_failed = id_of(out->failure());
  }
  Ref<Var> out;
  int finished_with = -1, was_failed = -1;
  bool was_pending = false;
};

void skip_and_finish() {
  auto engine = started(0);
  auto a = make_ref<IntVar>(), b = make_ref<IntVar>();
  push(*engine, writes(fallible([] { return make_failure(4); }), {a}));
  auto second = make_ref<SkipOp>();
  second->out = b;
  second->add_read(a);
  second->add_write(b);
  push(*engine, Ref<Op>(second));
  same(id_of(b->failure()), 40, "what skip returned");
  same(second->finished_with, 40, "finish gets it");
  check(second->was_pending && second->was_failed == 0, "finish comes before the version shows");
  check(!b->pending(), "complete");
}

class CountedVar final : public Var {
 public:
  explicit CountedVar(std::atomic<int>& alive) : alive_(alive) { ++alive_; }
  ~CountedVar() override { --alive_; }

 private:
  std::atomic<int>& alive_;
};

// A counter that its caller runs without the engine fails, again and again, while ops of another
// thread read the var: each sees one of the versions.
void unpushed_ops_fail_beside_others() {
  auto engine = started(1);
  auto var = make_ref<IntVar>();
  std::atomic<bool> over{false};
  std::jthread reader([&] {
    for (; !over; engine->wait_for_all({}))
      for (int i = 0; i < 20; ++i) push(*engine, reads(op([] {}), {var}));
  });
  for (int i = 1; i <= scaled(20000); ++i)
    Engine::fail_unpushed(*writes(op([] {}), {var}), make_failure(i));
  over = true;
  reader.join();
  same(id_of(var->failure()), scaled(20000), "the last one stays");
}

void references_are_dropped() {
  std::atomic<int> alive{0};
  auto engine = started(1);
  std::vector<Ref<Op>> kept;
  for (int i = 0; i < 100; ++i) {
    auto one = op([] {});
    one->add_write(Ref<Var>(make_ref<CountedVar>(alive)), true);
    one->add_read(Ref<Var>(make_ref<CountedVar>(alive)));
    kept.push_back(one);
    push(*engine, one);
  }
  engine->wait_for_all({});
  same(alive.load(), 0, "vars alive although the ops are kept");
  for (auto& one : kept) same(one->use_count(), 1u, "references to a complete op");
}

}  // namespace

int main(int argc, char** argv) {
  return run_tests(argc, argv,
                   {{"duplicate claims merge", duplicates_merge},
                    {"an op with many claims", many_claims},
                    {"merged claims keep their order", merged_claims_keep_order},
                    {"failures spread and stay", failures_spread_and_stay},
                    {"resources are never poisoned", resources_stay_usable},
                    {"pending ops are seen", pending_ops_are_seen},
                    {"a wait is no use", a_wait_is_no_use},
                    {"skip and finish", skip_and_finish},
                    {"unpushed ops fail beside others", unpushed_ops_fail_beside_others},
                    {"references are dropped on completion", references_are_dropped}});
}
