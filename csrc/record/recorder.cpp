// csrc/record/recorder.cpp: recording a call.
#include "csrc/record/recorder.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "csrc/engine/reserve.h"
#include "csrc/fuse/bits/trials.h"
#include "csrc/fuse/op_table.h"
#include "csrc/record/forward_stacks.h"
#include "csrc/record/kept_values.h"
#include "csrc/record/lazy_tensor.h"
#include "csrc/record/library.h"
#include "csrc/record/metadata/doubts.h"
#include "csrc/record/metadata/meta_answers.h"
#include "csrc/record/metadata/offset_views.h"
#include "csrc/record/metadata/probe.h"
#include "csrc/record/node_builder.h"
#include "csrc/record/process/first_use.h"
#include "csrc/record/process/fork.h"
#include "csrc/record/process/gate.h"
#include "csrc/record/results.h"
#include "csrc/record/special/factories.h"
#include "csrc/record/special/temporaries.h"
#include "csrc/record/sync_debug.h"
#include "csrc/record/window/read_habit.h"
#include "csrc/run/caller/as_engine_thread.h"
#include "csrc/run/cores/openmp_team.h"
#include "csrc/run/cores/parts.h"
#include "csrc/run/device/launch_order.h"
#include "csrc/run/executor.h"
#include "csrc/run/failures/failure_log.h"
#include "csrc/run/failures/ignored_warnings.h"
#include "csrc/run/plain/plain_storage.h"
#include "csrc/run/plain/plain_values.h"
#include "csrc/run/python_ref.h"
#include "csrc/run/unseen.h"

namespace lazyeng::record {
namespace {

Recorder* current = nullptr;  // set at import, for good

/// A tensor that set_ gives other memory lets go of what it has, also if that has failed: the call
/// goes on with a tensor that has nothing. Whether it does.
bool let_go_of_failed(Call& call) {
  if (call.info.handle.schema().name() != "aten::set_") return false;
  run::TensorArg& target = call.tensors.front();
  if (!target.value || target.plain) return false;
  current->wait_for(target.value->var());
  if (!target.value->var().failure()) return false;
  const run::Geometry& look = target.value->geometry();
  const run::RealDispatch below;
  target.value = run::new_value_of(at::empty({0}, at::dtype(look.dtype()).device(look.device())));
  call.looks.front() = target.value->geometry_ref();
  return true;
}

void make_python_objects(const Made& made) {
  for (const at::Tensor& tensor : made) make_python_object(tensor);
}

/// A plain tensor's metadata is not ours to change at recording time.
bool rewrites_plain(const Call& call, const Plan& plan) {
  for (const Plan::Rewrite& rewrite : plan.rewrites)
    if (call.tensors[rewrite.tensor].raw.defined()) return true;
  return false;
}

/// Memory that the program gave may be of a kind that cannot grow, which eager says at the call.
bool grows_given_memory(const Call& call, const Plan& plan) {
  return std::any_of(plan.rewrites.begin(), plan.rewrites.end(), [&](const Plan::Rewrite& rewrite) {
    const run::StorageVar& var = call.tensors[rewrite.tensor].value->var();
    return var.exposed() && rewrite.after->extent_bytes() > var.nbytes();
  });
}

/// A new call: may it join groups? (Without dims it is a number mostly, of its own dtype.)
void want_trials(const Call& call, uint64_t number) {
  for (const run::GeometryRef& look : call.looks)
    if (look && look->device().is_cpu() && !look->sizes().empty())
      fuse::want_trial(call.info, look->dtype(), look->numel(), number);
}

bool is_mask(const run::GeometryRef& look) {
  return look && (look->dtype() == c10::kBool || look->dtype() == c10::kByte);
}

bool depends_on_values(const Call& call) {
  if (!call.info.indexes) return call.info.data_dependent;
  return std::any_of(call.looks.begin() + 1, call.looks.end(), is_mask);
}

c10::IValue without_memory(const Call& call, size_t& next, const c10::IValue& input) {
  const run::GeometryRef look = call.looks[next];
  const run::TensorArg& arg = call.tensors[next++];
  if (!arg.value) return input;
  const c10::Storage nothing(c10::Storage::use_byte_size_t(), arg.value->var().nbytes(),
                             at::DataPtr(nullptr, look->device()), nullptr, false);
  return run::tensor_over(nothing, *look);
}

/// The stack of this call and, in a backward pass, that of the forward op. True if it is one whose
/// gradient may be asked for. GIL.
bool capture_stacks(run::Node& node, const at::Tensor& result) {
  find_forward_node();
  node.stack = stacks::capture();
  node.forward_stack = forward_stack();
  // (With create_graph, the gradient's own gradient leads to the same forward op.)
  if (!has_new_autograd_node()) return false;
  note_forward(node.forward_stack ? node.forward_stack : node.stack, result);
  return true;
}

at::Tensor first_result(const Made& made, const Call& call) {
  if (!made.empty()) return made[0];
  return call.written.empty() ? at::Tensor() : call.written[0];
}

bool is_awaited(const Call& call) {
  return std::any_of(call.tensors.begin(), call.tensors.end(), [](const run::TensorArg& arg) {
    return arg.value && arg.value->var().awaited();
  });
}

bool has_arguments(const run::Node& node) {
  return std::ranges::all_of(node.tensors, &run::TensorArg::is_ready);
}

/// Whether nothing that the engine has uses what the node writes.
bool may_write(const run::Node& node) {
  return std::ranges::all_of(node.written_vars,
                             [](const run::StorageVar* var) { return var->idle(); });
}

/// Such an op has no order to keep, and nothing to wait for: `x.item()` once x is there.
bool reads_what_is_complete(const Call& call, const run::Node& node) {
  return node.written_vars.empty() && call.info.aten && has_arguments(node);
}

/// Runs it here. False: it has to wait for its turn.
bool run_complete(const Call& call, run::Node& node) {
  if (!reads_what_is_complete(call, node)) return false;
  const run::NoGil released;
  node.run();
  if (!node.asks_again()) return true;
  node.was_not_run();  // it lacks memory: once more, when nothing else runs
  return false;
}

/// A number changed in place, with nothing else pending on it: a counter, as optimizers keep for
/// their steps and read soon with item(). Behind the ops in the queue it would make that read wait
/// for all of them; run at once, it costs what it does in eager.
bool is_counter(const run::Node& node) {
  if (!node.outputs.empty() || node.queue != engine::QueueId::cpu || node.info.random) return false;
  bool read = node.writes_plain;  // (what is known of a plain tensor's storage does not live long)
  for (const run::TensorArg& arg : node.tensors) {
    if (!arg.value) continue;
    const run::StorageVar& var = arg.value->var();
    if (arg.value->geometry().numel() != 1 || var.awaited() || (arg.written && !var.idle()))
      return false;
    read |= arg.written && var.values_read.load(std::memory_order_relaxed);
  }
  return read;
}

/// lazy.copy_(plain)
bool copies_plain(const Call& call) {
  return call.info.crosses_devices && call.info.writes && call.tensors.size() == 2 &&
         !call.tensors[0].raw.defined() && call.tensors[1].value && call.tensors[1].raw.defined();
}

/// `plain.to("lazyeng")` has read `plain` when it returns, as copies to other devices have: the
/// program may change it then. So has `lazy.copy_(plain)`. Not with non_blocking=True.
bool brings_to_device(const Call& call) {
  const bool to_lazyeng =
      call.to_lazyeng && call.tensors.size() == 1 && call.tensors[0].raw.defined();
  if ((!to_lazyeng && !copies_plain(call)) || thread_mode().inside()) return false;
  return std::none_of(call.args.begin(), call.args.end(), [](const c10::IValue& argument) {
    return argument.isBool() && argument.toBool();
  });
}

/// In mode deferred nothing runs: what it reads is a copy that nobody else has.
void take_copy(run::TensorArg& source) {
  if (run::plain_storages().is_guarded(source.raw)) return;
  const run::RealDispatch below;
  source.raw = source.raw.clone();
  source.value = nullptr;
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
/// op has thrown. (If the engine runs it, found.thrown is never set.)
void keep_failure(const run::Node& node) {
  if (!node.found.thrown) return;
  const engine::FailurePtr failure = node.fail(node.found.thrown);
  run::failure_log().add(static_cast<const run::OpFailure&>(*failure).root(),
                         run::FailureLog::Holder::log);
}

/// What a node writes is kept by the values that it holds; but that a check fails together with
/// what it checks is kept by its claims alone, which end when it has run.
std::vector<run::StorageVarRef> kept_for_checks(const run::Node& node) {
  if (!node.info.checks_values) return {};
  std::vector<run::StorageVarRef> kept;
  for (run::StorageVar* const var : node.written_vars) kept.emplace_back(var);
  return kept;
}

/// What it writes was counted by build_node, and torch bumps it once our kernel has returned.
bool counts_writes(const run::OpInfo& info, const run::Node& node) {
  return info.aten && info.writes && !node.collective &&
         std::ranges::none_of(node.tensors, &run::TensorArg::silent);
}

/// An index that is out of range, and nothing that eager would have refused for its looks. (A dim
/// that is not there is an IndexError, too, and not all meta functions look at that.)
bool fails_by_a_value(const Call& call, const run::Node& node) {
  if (!node.found.thrown || call.info.writes || thread_mode().mode == Mode::sync) return false;
  if (!call.info.looks_up_by_values) return false;
  if (std::ranges::any_of(call.looks, [](const auto& look) { return look && look->numel() == 0; }))
    return false;
  try {
    std::rethrow_exception(node.found.thrown);
  } catch (const c10::IndexError&) {
    return true;
  } catch (...) {
    return false;
  }
}

/// What the node threw, or found failed. `had_failed`: so had what it was to change, before.
void raise_found(const Call& call, const run::Node& node, bool had_failed) {
  const run::Node::Discovery& found = node.found;
  if (!found.thrown && !found.poisoned) return;
  if (counts_writes(call.info, node)) run::take_back_own_writes();
  if (!found.thrown) run::throw_python_error(found.poisoned);
  if (!had_failed) update_written(call, node);
  std::rethrow_exception(found.thrown);
}

constexpr const char* kWritesOutside = "a write to a plain tensor, or a draw, outside lazy()";

/// Nobody sees old memory from now on: the node's writes count as pending. Whether somebody might.
bool guard_plain_memory(const run::Node& node) {
  if (node.discover) return false;
  bool guarded = false;
  for (run::StorageVar* var : node.written_vars) {
    if (!var->exposed()) continue;
    guarded |= run::plain_storages().guard(*var);
    // (It was launched meanwhile: there is no guard, and nobody waits at the end of the block.)
    if (!var->awaited()) run::give_to_current_stream(*var);
  }
  return guarded;
}

}  // namespace

Recorder* current_recorder() { return current; }
void set_current_recorder(Recorder* recorder) { current = recorder; }

Recorder::Recorder(std::unique_ptr<engine::Engine> engine) : engine_(std::move(engine)) {
  engine::install_reserve();
  engine_->set_hungry([this](engine::QueueId queue) { return pusher_.hungry(queue); });
  engine_->set_watch([this](bool last) { return pusher_.watch(last); });
  engine_->set_thread_init([](engine::QueueId, unsigned) {
    engine::Owing::for_life();
    run::init_engine_thread();
    Gate::exempt_this_thread();
  });
  run::set_parts_engine(engine_.get());
  run::set_plain_of(&plain_of);
  engine_->set_long_idle([] { run::openmp_helpers().end_own_team(); });
  static thread_local std::optional<run::AsEngineThread> as_engine_thread;
  engine_->set_guest_hooks([] { as_engine_thread.emplace(); }, [] { as_engine_thread.reset(); });
}

Recorder::~Recorder() { run::set_parts_engine(nullptr); }

void Recorder::start_threads() {
  window_.set_watched(true);
  run::openmp_helpers().start();
}

void Recorder::stop_threads() {
  window_.set_watched(false);
  run::openmp_helpers().stop();
}

void Recorder::record(const run::OpInfo& info, torch::jit::Stack* stack) {
  check_reserve();
  const engine::Owing owing;
  if (!record_offset_view(info, *stack) && !write_temporary(info, stack) &&
      !answer_at_once(info, stack))
    record(read_call(info, stack), stack);
}

void Recorder::record(Call call, torch::jit::Stack* results) {
  const engine::Owing owing;
  note_backward_of_lazy();
  if (call.info.metadata_only) {
    // Asks for shapes and the like: answered from tensors without memory.
    torch::jit::Stack stack;
    size_t next = 0;
    for (size_t i = 0; i < call.args.size(); ++i)
      stack.push_back(call.info.args[i].kind == run::ArgKind::tensor
                          ? without_memory(call, next, call.inputs[i])
                          : call.args[i]);
    run::RealDispatch below;
    call.info.handle.callBoxed(stack);
    for (c10::IValue& result : stack) results->push_back(std::move(result));
    return;
  }
  if (call.run_now || depends_on_values(call) || call.info.returns_plain ||
      thread_mode().mode == Mode::sync)
    return run_now(call, nullptr, results);
  if (const PlanRef plan = plan_of_offset_view(call)) return record_plan(call, *plan, results);
  PlanKey key;
  const bool keyed = make_key(call, key);
  PlanRef plan = keyed ? plans_.find(key) : nullptr;
  if (!plan) {
    counters_.plans.fetch_add(1, std::memory_order_relaxed);
    first_use();
    adopt_new_ops();
    {
      const run::IgnoredWarnings ignored;
      const run::Unseen unseen;
      plan = infer(call);
    }
    if (!plan) return run_now(call, keyed ? &key : nullptr, results);
    const uint64_t number = window_.recorded();
    want_trials(call, number);
    run_due_trials(number);
    if (keyed) plans_.insert(key, call, plan);
  }
  if (plan->run_now || rewrites_plain(call, *plan) || grows_given_memory(call, *plan))
    return run_now(call, nullptr, results);
  record_plan(call, *plan, results);
}

void Recorder::record_plan(Call& call, const Plan& plan, torch::jit::Stack* results) {
  const engine::Owing owing;
  if (plan.only_metadata) return record_metadata(call, plan, results);
  AtOnce tried;
  if (!run_at_once(call, plan, tried)) return record_node(call, plan, tried, results);
  Made made;
  push_recorded(call, plan, tried.values, made, results);
  run::Gil gil;
  make_python_objects(made);
  note_at_once(call, plan, tried, first_result(made, call));
}

/// A view, or another shape for what is there: nothing runs.
void Recorder::record_metadata(Call& call, const Plan& plan, torch::jit::Stack* results) {
  const auto value = [&](size_t tensor, run::GeometryRef look) {
    return make_ref<run::Value>(call.tensors[tensor].value->var_ref(), std::move(look));
  };
  c10::SmallVector<run::ValueRef, 2> views, after;
  for (const OutputPlan& output : plan.outputs)
    views.push_back(output.kind == OutputPlan::Kind::undefined
                        ? nullptr
                        : value(output.of, output.look(call.looks[output.of]->offset())));
  for (const Plan::Rewrite& rewrite : plan.rewrites)
    after.push_back(value(rewrite.tensor, rewrite.after));
  run::note_own_writes(call.written);  // it bumps as a write does
  Made made;
  push_recorded(call, plan, views, made, results);
  apply_rewrites(call, call.tensors, plan, after);
  run::Gil gil;
  make_python_objects(made);
  if (has_new_autograd_node()) note_forward(stacks::capture(), first_result(made, call));
  trace_record(call, nullptr);
}

/// `tried`: what became of it at the call, if it was.
void Recorder::record_node(Call& call, const Plan& plan, AtOnce& tried,
                           torch::jit::Stack* results) {
  const bool reads_now = brings_to_device(call);
  const bool runs_now = reads_now && thread_mode().mode == Mode::async && !tried.thrown;
  if (reads_now && thread_mode().mode != Mode::async) take_copy(call.tensors.back());
  const Ref<run::Node> node = build_node(call, false);
  c10::SmallVector<run::ValueRef, 2> values = add_outputs(*node, call, plan);
  add_rewrites(*node, plan);
  Made made;
  push_recorded(call, plan, values, made, results);
  c10::SmallVector<run::ValueRef, 2> after;
  for (const run::Node::Rewrite& rewrite : node->rewrites) after.push_back(rewrite.after);
  apply_rewrites(call, node->tensors, plan, after);
  {
    run::Gil gil;
    make_python_objects(made);
    capture_stacks(*node, first_result(made, call));
  }
  if (runs_now && !node->plain_reads.empty()) {
    run_in_order(*node, Before::needed);
    trace_record(call, node.get());
  } else {
    submit(call, *node, tried);
  }
  complete_eager_effects(call, *node);
  throttle(*node);
}

bool Recorder::record_direct(Call& call, bool view, at::Tensor& result) {
  PlanRef plan = plan_of_offset_view(call);
  if (!plan) {
    PlanKey key;
    if (!make_key(call, key)) return false;
    plan = plans_.find(key);
  }
  if (!plan || plan->run_now || plan->only_metadata != view || !plan->rewrites.empty())
    return false;
  note_backward_of_lazy();
  find_forward_node();
  if (view) {
    const OutputPlan& output = plan->outputs[0];
    if (output.kind != OutputPlan::Kind::view || output.of != 0) return false;
    result = make_lazy(make_ref<run::Value>(call.tensors[0].value->var_ref(),
                                            output.look(call.looks[0]->offset())));
    if (has_new_autograd_node()) note_forward(stacks::capture(), at::Tensor());
    trace_record(call, nullptr);
    return true;
  }
  AtOnce tried;
  if (run_at_once(call, *plan, tried)) {
    result = make_lazy(std::move(tried.values[0]));
    note_at_once(call, *plan, tried, at::Tensor());
    return true;
  }
  const Ref<run::Node> node = build_node(call, false);
  c10::SmallVector<run::ValueRef, 2> values = add_outputs(*node, call, *plan);
  if (!values.empty()) result = make_lazy(std::move(values[0]));
  capture_stacks(*node, at::Tensor());  // (an autograd.Function has a node, though this has none)
  submit(call, *node, tried);
  throttle(*node);
  return true;
}

/// To the engine, or, if it has thrown at the call, to those that read its results.
void Recorder::submit(const Call& call, run::Node& node, AtOnce& tried) {
  if (tried.thrown)
    fail_at_once(node, tried);
  else
    schedule(node);
  trace_record(call, &node);
}

void Recorder::schedule(run::Node& node) {
  const std::vector<run::StorageVarRef> kept = kept_for_checks(node);
  if (runs_at_call(node)) [[unlikely]] {
    WaitScope waits("it uses memory that others may write unseen (numpy, DLPack)");
    if (waits.wanted() && !has_arguments(node)) waits.begin(node.info.torch_name);
    run_in_order(node, Before::needed);
    for (run::StorageVar* var : node.written_vars) run::plain_storages().release(*var);
    return waits.report();
  }
  const bool async = thread_mode().mode == Mode::async;
  if (async && is_counter(node)) {
    if (!run_unpushed(node)) run_in_order(node, Before::needed);
    return;
  }
  const bool fusable = window_.fuses() && fuse::may_join(node);
  const bool for_reader = async && read_habit.records(node.brief, fusable) && window_.watched();
  engine_->admit(node.cost_bytes);
  const Window::Appended appended = window_.append(node, async, for_reader);
  if (async) pusher_.offer(appended);
  if (guard_plain_memory(node) && !thread_mode().inside()) wait_for_writes(node);
}

/// Outside of blocks what plain tensors see of a write is there when the call returns, as in eager:
/// also if it is lazy tensors over the same memory that the call was given. (Those carry what
/// failed; the guard of the plain ones stays then, as their memory is that of before.)
void Recorder::wait_for_writes(const run::Node& node) {
  WaitScope waits(kWritesOutside);
  for (const run::TensorArg& arg : node.tensors) {
    if (!arg.written || !arg.value) continue;
    wait_until_written(arg.value->var(), waits);
    if (!arg.value->var().failure()) complete(arg.value->var());
  }
  waits.report();
}

/// Runs a counter on this thread without the engine. False: somebody has to wait for somebody.
bool Recorder::run_unpushed(run::Node& node) {
  if (!window_.number_if(node, [&] { return has_arguments(node) && may_write(node); }))
    return false;
  const run::AsEngineThread as_engine_thread;
  const engine::FailurePtr failure = node.run();
  counters_.at_once.fetch_add(1, std::memory_order_relaxed);
  if (!failure) return true;
  engine::Engine::fail_unpushed(node, failure);
  node.finish(failure);
  run::throw_if_interrupt(failure);
  return true;
}

/// Pushes the node and runs it on this thread when its turn comes.
void Recorder::run_in_order(run::Node& node, Before before) {
  const EngineWhileForking while_forking(*this);  // (before any lock)
  const run::NoGil released;
  const run::RealDispatch below;
  const Gate::Inside inside;
  const engine::GuestScope guest(*engine_);  // also of what is pushed first
  Batch pushed;
  std::unique_lock pushing = pusher_.lock();
  // The engine counts its writes as pending from now on: they never stand in the window.
  pushed = pusher_.push_before(node, before == Before::all);
  engine_->admit(node.cost_bytes);
  wait_until_done([&](const engine::Interrupt& interrupt) {
    return engine_->push_and_run(Ref<engine::Op>(&node), interrupt, [&] {
      pushing.unlock();
      guard_plain_memory(node);
    });
  });
}

void Recorder::run_now(Call& call, const PlanKey* learn_under, torch::jit::Stack* results) {
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
  read_habit.reads();
  if (!run_complete(call, *node)) {
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
  if (learn_under && fails_by_a_value(call, *node) && record_failed(call, *node, results))
    return waits.report();
  raise_found(call, *node, had_failed);
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
/// call. False: the meta function does not say what they would be.
bool Recorder::record_failed(Call& call, const run::Node& node, torch::jit::Stack* results) {
  MetaAnswer answer = MetaAnswer::none;
  const PlanRef plan = ask_meta(call, StandIns::For::meta, answer);
  if (!plan || plan->run_now || plan->only_metadata || !plan->rewrites.empty()) return false;
  AtOnce tried;
  tried.thrown = node.found.thrown;
  record_node(call, *plan, tried, results);
  return true;
}

/// What kernels gave that ran at the call is a plan for the next call of that kind.
void Recorder::learn_from(const Call& call, const run::Node& node, const PlanKey& key) {
  note_kernel_accepted(call);
  compare_with_meta(call, node.found);
  if (!structured_meta_agrees(call, node.found))
    doubt_of(call).structured.store(true, std::memory_order_relaxed);
  PlanRef plan = learn(call, node.found);
  if (!plan) return;
  want_trials(call, window_.recorded());
  plans_.insert(key, call, std::move(plan));
}

/// What eager code around us may look at without coming through our kernels is complete when the
/// call returns: outside lazy() plain tensors and generators; inside it plain tensors just filled
/// with random numbers (the result of torch.randn).
void Recorder::complete_eager_effects(const Call& call, const run::Node& node) {
  const bool inside = thread_mode().inside();
  WaitScope waits(kWritesOutside);
  if (call.writes_plain && (!inside || call.info.random)) {
    for (const run::TensorArg& arg : node.tensors)
      if (arg.written && arg.value) wait_and_check(*arg.value);
    return waits.report();
  }
  if (!call.info.random || inside) return;
  for (run::StorageVar* var : node.written_vars)
    if (var->kind() == engine::Var::Kind::resource) wait_for(*var);
  waits.report();
}

}  // namespace lazyeng::record
