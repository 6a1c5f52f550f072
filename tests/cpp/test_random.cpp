// tests/cpp/test_random.cpp: random programs on every engine against a serial run.
#include <random>

#include "tests/cpp/ops.h"

using namespace lazyeng;
using namespace lazyeng::test;

namespace {

constexpr int kVars = 100, kResources = 5, kOps = 10000;

struct Claim {
  int var;
  bool write, overwrites;
};

struct Step {
  int id = 0;
  bool fails = false;
  std::vector<Claim> claims;  // with duplicates
  int queue = 0, priority = 0;
  int batch = 1;      // pushed together with the steps before it unless batch is 1
  int wait_for = -1;  // after the push
  bool by_caller = false;
};

bool is_resource(int var) { return var < kResources; }

uint64_t mix(uint64_t hash, uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15u + (hash << 6) + (hash >> 2);
  return hash * 0xff51afd7ed558ccdu;
}

std::vector<Step> make_program(uint64_t seed) {
  std::mt19937_64 random(seed);
  auto below = [&](int n) { return static_cast<int>(random() % n); };
  std::vector<Step> program(kOps);
  for (int i = 0; i < kOps; ++i) {
    Step& step = program[i];
    step.id = i + 1;
    step.fails = below(50) == 0;
    const int num_claims = below(200) == 0 ? 30 : 1 + below(4);
    for (int c = 0; c < num_claims; ++c) {
      const bool write = below(2) == 0;
      step.claims.push_back({below(kVars), write, write && below(2) == 0});
      if (below(10) == 0) step.claims.push_back({step.claims[0].var, below(2) == 0, false});
    }
    step.queue = below(10) < 7 ? 0 : below(4);
    step.priority = below(5) - 2;
    step.batch = below(3);
    step.by_caller = below(100) == 0;
    if (below(100) == 0) step.wait_for = below(kVars);
  }
  return program;
}

// What a step does to the vars: claims as the engine should merge them.
struct Merged {
  std::vector<int> vars;
  std::vector<bool> write, overwrites;

  explicit Merged(const Step& step) {
    for (const Claim& claim : step.claims) {
      size_t i = 0;
      while (i < vars.size() && vars[i] != claim.var) ++i;
      if (i == vars.size()) {
        vars.push_back(claim.var);
        write.push_back(claim.write);
        overwrites.push_back(claim.overwrites);
      } else {
        write[i] = write[i] || claim.write;
        overwrites[i] = overwrites[i] && claim.overwrites;
      }
    }
  }

  // The work, on any array of values. An overwrite does not look at the old value.
  template <class Value>
  uint64_t apply(int id, const Value& value) const {
    uint64_t hash = id;
    for (size_t i = 0; i < vars.size(); ++i)
      if (!overwrites[i]) hash = mix(hash, value(vars[i]));
    for (size_t i = 0; i < vars.size(); ++i)
      if (write[i]) value(vars[i]) = mix(hash, i);
    return hash;
  }
};

struct Serial {
  std::vector<uint64_t> value = std::vector<uint64_t>(kVars);
  std::vector<int> failure = std::vector<int>(kVars);
  uint64_t executed = 0, skipped = 0;

  int do_step(const Step& step) {
    const Merged merged(step);
    int cause = 0;
    for (size_t i = 0; i < merged.vars.size() && !cause; ++i)
      if (!merged.overwrites[i]) cause = failure[merged.vars[i]];
    ++(cause ? skipped : executed);
    if (!cause && step.fails) cause = step.id;
    if (!cause) merged.apply(step.id, [this](int v) -> uint64_t& { return value[v]; });
    for (size_t i = 0; i < merged.vars.size(); ++i)
      if (merged.write[i] && !is_resource(merged.vars[i])) failure[merged.vars[i]] = cause;
    return cause;
  }
};

class StepOp final : public Op {
 public:
  StepOp(const Step& step, std::vector<Ref<IntVar>>& vars, std::vector<int>& outcome)
      : step_(step), merged_(step), vars_(vars), outcome_(outcome) {
    for (const Claim& claim : step.claims) {
      if (claim.write)
        add_write(vars[claim.var], claim.overwrites);
      else
        add_read(vars[claim.var]);
    }
    queue = static_cast<QueueId>(step.queue);
    priority = static_cast<int16_t>(step.priority);
    cost_bytes = step.id % 7;
  }

  FailurePtr run() noexcept override {
    if (step_.fails) return make_failure(step_.id);
    merged_.apply(step_.id, [this](int v) -> uint64_t& { return vars_[v]->value; });
    return nullptr;
  }

  void finish(const FailurePtr& failure) noexcept override { outcome_[step_.id] = id_of(failure); }

 private:
  const Step& step_;
  const Merged merged_;
  std::vector<Ref<IntVar>>& vars_;
  std::vector<int>& outcome_;
};

void compare(Engine& engine, const std::vector<Step>& program) {
  Serial serial;
  std::vector<Ref<IntVar>> vars;
  for (int v = 0; v < kVars; ++v)
    vars.push_back(make_ref<IntVar>(is_resource(v) ? Var::Kind::resource : Var::Kind::data));
  std::vector<int> outcome(kOps + 1, -1), expected(kOps + 1, -1);
  std::vector<Ref<Op>> batch;
  for (const Step& step : program) {
    expected[step.id] = serial.do_step(step);
    batch.push_back(make_ref<StepOp>(step, vars, outcome));
    if (step.by_caller) {
      Ref<Op> last = batch.back();
      batch.pop_back();
      push(engine, std::exchange(batch, {}));
      push_and_run(engine, last);
      same(outcome[step.id], expected[step.id], "outcome of what the caller ran");
    } else if (step.batch == 1 || step.wait_for >= 0) {
      push(engine, std::exchange(batch, {}));
    }
    if (step.wait_for < 0) continue;
    IntVar& var = *vars[step.wait_for];
    engine.wait_for_var(var, {});
    same(id_of(var.failure()), serial.failure[step.wait_for], "failure after a wait");
    same(var.value, serial.value[step.wait_for], "value after a wait");
  }
  push(engine, std::exchange(batch, {}));
  engine.wait_for_all({});
  for (int v = 0; v < kVars; ++v) {
    same(vars[v]->value, serial.value[v], "value of var " + std::to_string(v));
    same(id_of(vars[v]->failure()), serial.failure[v], "failure of var " + std::to_string(v));
    check(!vars[v]->pending(), "nothing is pending");
  }
  for (const Step& step : program)
    same(outcome[step.id], expected[step.id], "outcome of op " + std::to_string(step.id));
  const Counters counters = engine.counters();
  same(counters.executed, serial.executed, "executed");
  same(counters.skipped, serial.skipped, "skipped");
  same(counters.pending_ops, 0u, "pending ops");
  same(counters.pending_bytes, 0u, "pending bytes");
}

void compare_on(unsigned workers, bool fresh) {
  for (uint64_t seed : {1, 2, 3}) {
    if (fresh) seed = std::random_device()();
    auto engine = started(workers);
    try {
      compare(*engine, make_program(seed));
    } catch (const std::exception& error) {
      check(false, "seed " + std::to_string(seed) + ": " + error.what());
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  return run_tests(argc, argv,
                   {{"random programs, naive", [] { compare_on(0, false); }},
                    {"random programs, 1 worker", [] { compare_on(1, false); }},
                    {"random programs, 2 workers", [] { compare_on(2, false); }},
                    {"random programs, 8 workers", [] { compare_on(8, false); }},
                    {"random programs, naive, fresh seeds", [] { compare_on(0, true); }},
                    {"random programs, 2 workers, fresh seeds", [] { compare_on(2, true); }},
                    {"random programs, 8 workers, fresh seeds", [] { compare_on(8, true); }}});
}
