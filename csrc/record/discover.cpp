// csrc/record/discover.cpp: calls that run before they return, as only their run tells what they
// give: values that the program asks for, shapes that depend on values, all in mode sync, and the
// first of a kind that no meta function knows.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "csrc/record/forward_stacks.h"
#include "csrc/record/metadata/doubts.h"
#include "csrc/record/metadata/failed_first_call.h"
#include "csrc/record/metadata/probe.h"
#include "csrc/record/node_builder.h"
#include "csrc/record/recorder.h"
#include "csrc/record/results.h"
#include "csrc/record/sync_debug.h"
#include "csrc/run/caller/read_habit.h"
#include "csrc/run/executor.h"
#include "csrc/run/failures/failure_log.h"
#include "csrc/run/plain/plain_storage.h"
#include "csrc/run/plain/plain_values.h"
#include "csrc/run/python_ref.h"

namespace lazyeng::record {
namespace {

/// A tensor that set_ gives other memory lets go of what it has, also if that has failed: the call
/// goes on with a tensor that has nothing. Whether it does.
bool let_go_of_failed(Call& call) {
  if (call.info.handle.schema().name() != "aten::set_") return false;
  run::TensorArg& target = call.tensors.front();
  if (!target.value || target.plain) return false;
  current_recorder()->wait_for(target.value->var());
  if (!target.value->var().failure()) return false;
  const run::Geometry& look = target.value->geometry();
  const run::RealDispatch below;
  target.value = run::new_value_of(at::empty({0}, at::dtype(look.dtype()).device(look.device())));
  call.looks.front() = target.value->geometry_ref();
  return true;
}

bool is_awaited(const Call& call) {
  const auto awaited = [](const auto& arg) { return arg.value && arg.value->var().awaited(); };
  return std::ranges::any_of(call.tensors, awaited) ||
         std::ranges::any_of(call.components,
                             [](const ComponentArg& arg) { return arg.var->awaited(); });
}

/// Such an op has no order to keep, and nothing to wait for: `x.item()` once x is there.
bool reads_what_is_complete(const Call& call, const run::Node& node) {
  return node.written_vars.empty() && call.info.aten && node.inputs_are_ready();
}

/// Runs it here. False: it has to wait for its turn.
bool run_on_ready_inputs(const Call& call, run::Node& node) {
  if (!reads_what_is_complete(call, node)) return false;
  const run::NoGil released;
  node.run();
  if (!node.asks_again()) return true;
  node.was_not_run();  // it lacks memory: once more, when nothing else runs
  return false;
}

/// x.item()
void note_values_read(const Call& call) {
  if (!call.info.returns_plain || call.tensors.size() != 1 || !call.tensors[0].value) return;
  call.tensors[0].value->var().values_read.store(true, std::memory_order_relaxed);
}

/// A storage is no operand of the node, and set_() looks where it lies.
std::vector<run::StorageVarRef> storages_of(const Call& call) {
  std::vector<run::StorageVarRef> vars;
  for (const c10::IValue& arg : call.args)
    if (arg.isStorage())
      if (run::StorageVarRef var = run::plain_storages().find(arg.toStorage()))
        vars.push_back(std::move(var));
  return vars;
}

/// Ctrl-C has come while this thread itself ran the op: what is raised at the call is not what the
/// op has thrown. (If the engine runs it, its discovery has none.)
void keep_failure(const run::Node& node) {
  if (!node.discovery->thrown) return;
  const engine::FailurePtr failure = node.fail(node.discovery->thrown);
  run::failure_log().add(static_cast<const run::OpFailure&>(*failure).root(),
                         run::FailureLog::Holder::log);
}

bool has_rows_outside(const at::Tensor& sparse) {
  const at::Tensor indices = sparse._indices().contiguous();  // [sparse dims, elements], int64
  const int64_t* index = indices.const_data_ptr<int64_t>();
  for (int64_t dim = 0; dim < sparse.sparse_dim(); ++dim)
    for (int64_t i = 0; i < indices.size(1); ++i, ++index)
      if (*index < 0 || *index >= sparse.size(dim)) return true;
  return false;
}

/// The rows of a sparse gradient are those that the forward op was to look up (as those of a dense
/// one: run/looked_up_rows.h), and it cannot carry the failure of that op.
void check_sparse_gradient(const run::Node& node) {
  if (node.backward_of == 0 || !node.device.is_cpu()) return;
  const run::RealDispatch below;
  for (const c10::IValue& result : node.discovery->results) {
    if (!result.isTensor() || !result.toTensor().defined()) continue;
    const at::Tensor& made = result.toTensor();
    if (!made.is_sparse() || !made.device().is_cpu() || !has_rows_outside(made)) continue;
    if (const engine::FailurePtr failed = node.failure_of_forward())
      run::throw_python_error(failed);
    TORCH_CHECK_INDEX(false, "index out of range in self");
  }
}

/// What the node threw, or found failed. `had_failed`: so had what it was to change, before.
void raise_found(const Call& call, const run::Node& node, bool had_failed) {
  const run::Node::Discovery& found = *node.discovery;
  if (!found.thrown && !found.poisoned) return;
  if (!found.thrown) run::throw_python_error(found.poisoned);
  if (!had_failed) update_written(call, node);
  std::rethrow_exception(found.thrown);
}

}  // namespace

void Recorder::run_to_discover(Call& call, const PlanKey* learn_under, torch::jit::Stack* results) {
  if (thread_mode().mode != Mode::sync) counters_.fallbacks.fetch_add(1, std::memory_order_relaxed);
  note_values_read(call);
  const std::vector<run::StorageVarRef> storages = storages_of(call);  // set_ may let them grow
  for (const run::StorageVarRef& var : storages) finish_accesses(*var);
  const bool had_failed = let_go_of_failed(call);
  const Ref<run::Node> node = build_node(call, true);
  bool noted = false;
  {
    run::Gil gil;
    // (An interrupted wait leaves the op to the engine, which may keep its failure.)
    noted = capture_stacks(*node, at::Tensor());
  }
  WaitScope waits("its result is needed at the call");
  const std::vector<run::StorageVarRef> kept = kept_for_checks(*node);
  run::read_habit.reads();
  if (!run_on_ready_inputs(call, *node)) {
    if (waits.wanted() && is_awaited(call)) waits.begin(call.info.torch_name);
    try {
      run_in_order(*node, Before::all);
    } catch (...) {
      keep_failure(*node);
      throw;
    }
  }
  for (const run::StorageVarRef& var : storages) follow_moves(*var);
  for (run::StorageVar* var : node->written_vars) run::plain_storages().release(*var);
  if (learn_under && record_failed(call, *node, *learn_under, results)) return waits.report();
  raise_found(call, *node, had_failed);
  check_sparse_gradient(*node);
  if (learn_under) learn_from(call, *node, *learn_under);
  Made made;
  push_found(call, *node, made, results);
  {
    run::Gil gil;
    make_python_objects(made);
    if (noted) note_forward_result(first_result(made, call));
  }
  trace_record(call, node.get());
  waits.report();
}

/// Of a first call, which nothing but its run could tell about: its results fail, as of any later
/// call. False: eager would have raised this at the call, too, or nobody knows.
bool Recorder::record_failed(Call& call, const run::Node& node, const PlanKey& key,
                             torch::jit::Stack* results) {
  if (thread_mode().mode == Mode::sync) return false;
  const CallPlanRef plan = plan_in_spite_of(call, *node.discovery);
  if (!plan) return false;
  plans_.insert(key, call, plan);
  call.own_writes.take_back();  // (they are recorded once more)
  AtOnce tried;
  tried.thrown = node.discovery->thrown;
  record_node(call, *plan, tried, results);
  return true;
}

/// What kernels gave that ran at the call is a plan for the next call of that kind.
void Recorder::learn_from(const Call& call, const run::Node& node, const PlanKey& key) {
  note_kernel_accepted(call);
  compare_with_meta(call, *node.discovery);
  if (!structured_meta_agrees(call, *node.discovery))
    run::doubt_structured_meta(doubted_kind(call));
  CallPlanRef plan = learn(call, *node.discovery);
  if (!plan) return;
  want_trials(call, window_.recorded());
  plans_.insert(key, call, std::move(plan));
}

}  // namespace lazyeng::record
