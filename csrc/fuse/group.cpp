// csrc/fuse/group.cpp: running a group as a program, or its members one by one.
#include "csrc/fuse/group.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>

#include "csrc/engine/prefetch.h"
#include "csrc/fuse/binding.h"
#include "csrc/fuse/device/device_calls.h"
#include "csrc/fuse/plan.h"
#include "csrc/fuse/planned_programs.h"
#include "csrc/run/cores/kernel_call.h"
#include "csrc/run/cores/parts.h"
#include "csrc/run/cores/spare_cores.h"
#include "csrc/run/device/launch_log.h"
#include "csrc/run/traces/torch_profiler.h"
#include "csrc/run/traces/trace.h"

namespace lazyeng::fuse {
namespace {

std::atomic<bool> log_groups{false};

/// A group of so many bytes is asked how many of them it will never use.
constexpr uint64_t kWorthALook = uint64_t{1} << 20;

/// The references to the var that claims hold: that of the group, or, before it has any, those of
/// its members.
size_t claims_on(const Group& group, const run::StorageVar& var) {
  if (group.claimed) return 1;
  size_t claims = 0;
  for (const Member& member : group.members)
    for (const engine::Access& claim : member.node->claims()) claims += claim.var.get() == &var;
  return claims;
}

c10::SmallVector<run::Node*, 8> nodes_of(const Group& group) {
  c10::SmallVector<run::Node*, 8> nodes;
  for (const Member& member : group.members) nodes.push_back(member.node.get());
  return nodes;
}

/// Once it has run as a program.
void report(const Group& group, const GroupPlan& plan) {
  const bool on_cpu = group.members[0].node->device.is_cpu();
  report_group(nodes_of(group), group.numel, plan.bytes_saved,
               on_cpu ? best_kernels().name : "triton");
}

}  // namespace

/// (Most members end here, on another core than that which made them.)
Group::~Group() {
  for (size_t i = 0; i < members.size(); ++i) {
    if (i + 1 < members.size())
      engine::prefetch_to_write(members[i + 1].node.get(), sizeof(run::Node));
    members[i].node = nullptr;
  }
}

std::vector<bool> needed_vars(const Group& group) {
  std::vector<bool> needed(group.vars.size());
  // Values first: whoever holds one may make another of its var, and let go of the first. Once
  // nobody outside holds any of those here, nobody can; who has made one before counts at the var.
  for (const GroupValue& value : group.values)
    if (value.value->use_count() != value.references) needed[value.var] = true;
  for (size_t v = 0; v < needed.size(); ++v) {
    const GroupVar& var = group.vars[v];
    needed[v] =
        needed[v] || !var.fresh || var.var->use_count() != claims_on(group, *var.var) + var.values;
  }
  return needed;
}

uint64_t lower_costs(const Group& group) {
  if (group.by_hand) return 0;
  const std::vector<bool> needed = needed_vars(group);
  uint64_t sum = 0;
  for (const Member& member : group.members) {
    if (member.node->info.writes) continue;
    uint64_t spared = 0;
    for (int16_t result : member.results) {
      if (result == kNone) continue;
      const uint16_t var = group.values[result].var;
      if (!needed[var]) spared += group.vars[var].var->nbytes();
    }
    spared = std::min(spared, member.node->cost_bytes);
    member.node->lower_cost(spared);
    sum += spared;
  }
  return sum;
}

Stats& stats() {
  static Stats instance;
  return instance;
}

void report_group(c10::ArrayRef<run::Node*> nodes, int64_t elements, uint64_t bytes_not_written,
                  const std::string& kernel) {
  std::string names;
  for (const run::Node* node : nodes) names += ' ' + node->label();
  std::fprintf(stderr, "lazyeng fusion: %zu op%s, %lld elements, %llu bytes not written, %s:%s\n",
               nodes.size(), nodes.size() == 1 ? "" : "s", static_cast<long long>(elements),
               static_cast<unsigned long long>(bytes_not_written), kernel.c_str(), names.c_str());
}

void set_logging(bool on) { log_groups.store(on, std::memory_order_relaxed); }
bool logging() { return log_groups.load(std::memory_order_relaxed); }

/// Whether one core is done with it before a worker would have it, and have told of its end.
bool Group::is_soon_done() const {
  constexpr double kStep = 0.2e-3, kFunction = 0.8e-3;  // microseconds for an element
  constexpr double kWakeUps = 50;
  if (by_hand || !members[0].node->device.is_cpu()) return false;
  const double elements = static_cast<double>(numel) * static_cast<double>(members.size());
  return elements * (kStep + kFunction) / 2 < kWakeUps;
}

/// Whether its members together are: who waits cannot be interrupted before their end.
static bool is_short_enough(const Group& group) {
  double microseconds = 0;
  for (const Member& member : group.members) {
    const double cost = member.node->width ? member.node->width->cost() : 0;
    if (std::isfinite(cost)) microseconds += cost;  // (else it is small, or not brief)
  }
  return microseconds < run::kLongestOfReader * group.members[0].node->settings.num_threads;
}

uint64_t Group::claim() {
  handles_failures = true;
  weight = 0;
  brief = true;
  for (const Member& member : members) {
    brief &= member.node->brief;
    weight += member.node->weight;
    cost_bytes += member.node->cost_bytes;
  }
  brief = brief ? is_short_enough(*this) : is_soon_done();
  // (The bound of run-ahead has far more: of a small group nobody need know.)
  const uint64_t spared = cost_bytes < kWorthALook ? 0 : lower_costs(*this);
  cost_bytes -= spared;
  for (const Member& member : members) member.node->drop_claims();
  for (const GroupVar& var : vars) {
    if (var.written)
      add_write(run::StorageVarRef(var.var), var.overwrites);
    else
      add_read(run::StorageVarRef(var.var));
  }
  claimed = true;
  return spared;
}

/// Whether every member may run. (A failure that is about to be overwritten is for the member that
/// overwrites it to note.)
bool Group::can_fuse() const {
  for (const GroupVar& var : vars)
    if (var.var->failure()) return false;
  for (const Member& member : members) {
    try {
      member.node->check_plain_reads();
    } catch (...) {
      return false;
    }
  }
  return true;
}

static bool depends_on_width(const Program& program) {
  return std::any_of(program.reductions.begin(), program.reductions.end(), [&](const auto& fold) {
    return fold.folding.fold == Fold::sum && program.registers[fold.reg].type >= Type::f32;
  });
}

/// On one core of about 3 GHz.
static double microseconds_per_element(const Program& program) {
  constexpr double kStep = 0.2e-3, kLink = 0.04e-3, kWholeRows = 0.8e-3;
  const auto has_elements = [&](RegisterId reg) {
    return program.registers[reg].rate == Rate::element;
  };
  double sum = 0;
  for (const Step& step : program.steps) {
    if (step.chain)
      sum += kLink * static_cast<double>(step.links.size());
    else  // (what makes rows of rows, as softmax does, goes over them some times)
      sum += step.rows && has_elements(step.in[0]) && has_elements(step.out) ? kWholeRows : kStep;
  }
  return sum + kStep * static_cast<double>(program.reductions.size());
}

double Group::microseconds_on_one_core(const Program& program) const {
  constexpr double kMicrosecondsPerRow = 0.03;  // of each fold, beside its elements
  const auto rows = static_cast<double>(row ? numel / row : 0);
  const auto folds = std::count_if(program.steps.begin(), program.steps.end(), folds_rows);
  return static_cast<double>(numel) * microseconds_per_element(program) +
         rows * static_cast<double>(folds) * kMicrosecondsPerRow;
}

/// Which cores it takes (csrc/run/cores/width.h). Only sums over all elements depend on that.
/// (Those in torch's order do not, but on one core they take twice the time at 1 MiB.)
Cores Group::cores_for(const Program& program) const {
  if (depends_on_width(program))
    return static_cast<uint64_t>(numel) * sizeof(float) >= run::kWideBytes ? Cores::team
                                                                           : Cores::one;
  const double microseconds = microseconds_on_one_core(program);
  run::wish_for_all_cores(microseconds);
  if (run::takes_all_cores(microseconds)) return Cores::team;
  const int threads = members[0].node->settings.num_threads;
  return run::parts_pay(microseconds, threads) ? Cores::parts : Cores::one;
}

/// Data that leave it uncertain once will do so again: the members run at once then.
bool Group::is_trusted(const GroupPlan& plan) const {
  return plan.possible &&
         !(checked && std::atomic_ref(plan.doubted).load(std::memory_order_relaxed));
}

bool Group::run_fused(const GroupPlanRef& plan) {
  RECORD_FUNCTION("lazyeng::group", c10::ArrayRef<const c10::IValue>());  // for torch.profiler
  return members[0].node->device.is_cpu() ? run_tiles(*plan) : run_kernels(plan);
}

/// What it took on all cores may have been a wait for helpers: no more than the table says, then.
void Group::note_time(const Program& program, Cores taken,
                      std::chrono::steady_clock::time_point begin) const {
  const double by_table = microseconds_on_one_core(program);
  if (by_table < run::kWorthAllCores) return;
  const run::SpareCores::Clock::time_point end = run::SpareCores::Clock::now();
  const double took = std::chrono::duration<double, std::micro>(end - begin).count();
  const int cores = members[0].node->settings.num_threads;
  run::spare_cores().ran_large(taken == Cores::one ? took : std::min(by_table, took * cores), cores,
                               end);
}

/// Of ops in no table that only ever run in groups nothing else is known.
void Group::note_unknown_members(const Program& program) const {
  for (const Member& member : members)
    if (member.node->width && member.node->width->is_unknown())
      member.node->width->ran_in_group(microseconds_on_one_core(program));
}

bool Group::run_tiles(const GroupPlan& plan) {
  members[0].node->settings.apply();  // all have the same
  try {
    BoundPlan bound(*this, plan);
    if (!bound.valid()) return false;
    const Cores taken = cores_for(plan.program);
    const std::unique_lock<std::mutex> cores =
        taken == Cores::team ? run::take_all_cores() : std::unique_lock<std::mutex>();
    const auto begin = run::SpareCores::Clock::now();
    const bool certain = bound.run(taken);
    note_time(plan.program, taken, begin);
    if (!certain && checked) {
      std::atomic_ref(plan.doubted).store(true, std::memory_order_relaxed);
      return false;  // (what it has made so far nobody has seen)
    }
    bound.install();
    note_unknown_members(plan.program);
  } catch (...) {
    return false;  // no memory, or a number that does not fit: the member itself will tell
  }
  return true;
}

/// On a device. (If only the first of several kernels ran, tensors may have been changed in place:
/// the members cannot run after it.)
bool Group::run_kernels(const GroupPlanRef& plan) {
  std::exception_ptr error;
  const Launched launched = launch_group(*this, plan, error);
  if (launched == Launched::partly) settle_lost(error);
  return launched != Launched::no;
}

Launched Group::launch_by_hand(std::exception_ptr& error) const {
  const std::vector<bool> needed = needed_vars(*this);
  const auto is_dead = [&](const run::Value& value) {
    for (size_t v = 0; v < vars.size(); ++v)
      if (vars[v].var == &value.var()) return !needed[v];
    return false;
  };
  return launch_calls(nodes_of(*this), is_dead, error);
}

bool Group::run_by_hand() {
  std::exception_ptr error;
  const Launched launched = launch_by_hand(error);
  if (launched == Launched::partly) settle_lost(error);
  return launched != Launched::no;
}

void Group::settle_lost(const std::exception_ptr& error) {
  for (const Member& member : members) {
    engine::FailurePtr lost = run::device_failure(*member.node, error);
    outcomes_.settle(*member.node, lost ? lost : member.node->fail(error));
  }
}

/// Of a group that began then and ran as a program.
void Group::trace(int64_t begin) const noexcept {
  if (begin == 0) return;
  run::TraceEvent event{
      .kind = run::TraceEvent::Kind::group, .number = members[0].node->number, .begin = begin};
  for (const Member& member : members)
    event.members.push_back({&member.node->info, member.node->number});
  run::trace(std::move(event));
}

GroupPlanRef Group::plan_of_program() const {
  const std::vector<bool> needed = needed_vars(*this);
  if (!programs) return find_plan(*this, needed);
  GroupPlanRef plan = programs->find(needed);
  if (plan) return plan;
  plan = find_plan(*this, needed);
  programs->add(needed, plan);
  return plan;
}

/// Null if the members had better run one by one; they tell what has gone wrong, too.
GroupPlanRef Group::trusted_plan() const noexcept {
  try {
    GroupPlanRef plan = plan_of_program();
    return is_trusted(*plan) ? plan : GroupPlanRef();
  } catch (...) {
    return GroupPlanRef();
  }
}

bool Group::run_planned() {
  const GroupPlanRef plan = trusted_plan();
  if (!plan || !run_fused(plan)) return false;
  if (logging()) report(*this, *plan);
  return true;
}

bool Group::capture() noexcept {
  std::exception_ptr error;
  Launched launched = Launched::no;
  if (by_hand)
    launched = launch_by_hand(error);
  else if (const GroupPlanRef plan = trusted_plan())
    launched = launch_group(*this, plan, error);
  if (launched != Launched::no) return launched == Launched::yes;
  return std::ranges::all_of(members, [](const Member& member) {
    return !member.node->run() && !member.node->asks_again();
  });
}

bool Group::has_failed_forward() const noexcept {
  return std::ranges::any_of(
      members, [](const Member& member) { return member.node->failure_of_forward() != nullptr; });
}

engine::FailurePtr Group::run() noexcept {
  const run::SeenByTorchProfiler seen(*this);
  const int64_t begin = run::trace_time();
  if (can_fuse() && !has_failed_forward() && (by_hand ? run_by_hand() : run_planned())) {
    stats().groups.fetch_add(1, std::memory_order_relaxed);
    stats().members.fetch_add(members.size(), std::memory_order_relaxed);
    trace(begin);
    if (outcomes_.empty()) report_changed_inputs();
    return nullptr;
  }
  if (logging()) report_group(nodes_of(*this), numel, 0, "unfused");
  run_members();
  return nullptr;
}

/// A plain tensor may have been changed while the program read it: once more, as Node::execute.
void Group::report_changed_inputs() {
  for (const Member& member : members) outcomes_.report_changed_inputs(*member.node);
}

/// Of each var: the last member that reads or writes it.
std::vector<uint32_t> Group::last_uses() const {
  std::vector<uint32_t> last(vars.size());
  for (uint32_t m = 0; m < members.size(); ++m)
    for (const c10::ArrayRef<int16_t> places :
         {c10::ArrayRef<int16_t>(members[m].operands), c10::ArrayRef<int16_t>(members[m].results)})
      for (const int16_t value : places)
        if (value != kNone) last[values[value].var] = m;
  return last;
}

/// (Memory of a result that nobody holds goes with the last member that needs it: the group would
/// keep all of a long chain.)
void Group::run_members() noexcept {
  const std::vector<bool> needed = needed_vars(*this);
  const std::vector<uint32_t> last = last_uses();
  for (uint32_t m = 0; m < members.size(); ++m) {
    outcomes_.run(*members[m].node);
    for (size_t v = 0; v < vars.size(); ++v) {
      if (needed[v] || last[v] != m || vars[v].var->exposed()) continue;
      for (const GroupValue& value : values)
        if (value.var == v) value.value->drop_real();
      vars[v].var->drop_memory();
    }
  }
}

const engine::FailurePtr& Group::failure_of(const engine::Var& var,
                                            const engine::FailurePtr& failure) const noexcept {
  return outcomes_.failure_of(var, failure);
}

}  // namespace lazyeng::fuse
