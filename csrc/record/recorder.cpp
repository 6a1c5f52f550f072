// csrc/record/recorder.cpp: recording a call.
#include "csrc/record/recorder.h"

#include <ATen/core/Tensor.h>

#include "csrc/engine/reserve.h"
#include "csrc/record/forward_stacks.h"
#include "csrc/record/lazy_tensor.h"
#include "csrc/record/library.h"
#include "csrc/record/metadata/offset_views.h"
#include "csrc/record/node_builder.h"
#include "csrc/record/process/first_use.h"
#include "csrc/record/process/gate.h"
#include "csrc/record/results.h"
#include "csrc/record/special/factories.h"
#include "csrc/record/special/kernels_with_autograd.h"
#include "csrc/record/special/nested.h"
#include "csrc/record/special/temporaries.h"
#include "csrc/record/sync_debug.h"
#include "csrc/run/caller/as_engine_thread.h"
#include "csrc/run/cores/openmp_team.h"
#include "csrc/run/cores/parts.h"
#include "csrc/run/executor.h"
#include "csrc/run/failures/ignored_warnings.h"
#include "csrc/run/plain/plain_storage.h"
#include "csrc/run/plain/plain_values.h"
#include "csrc/run/python_ref.h"
#include "csrc/run/unseen.h"

namespace lazyeng::record {
namespace {

Recorder* current = nullptr;  // set at import, for good

/// A plain tensor's metadata is not ours to change at recording time.
bool rewrites_plain(const Call& call, const CallPlan& plan) {
  for (const CallPlan::Rewrite& rewrite : plan.rewrites)
    if (call.tensors[rewrite.tensor].raw.defined()) return true;
  return false;
}

/// Memory that the program gave may be of a kind that cannot grow, which eager says at the call.
bool grows_given_memory(const Call& call, const CallPlan& plan) {
  return std::any_of(plan.rewrites.begin(), plan.rewrites.end(),
                     [&](const CallPlan::Rewrite& rewrite) {
                       const run::StorageVar& var = call.tensors[rewrite.tensor].value->var();
                       return var.exposed() && rewrite.after->extent_bytes() > var.nbytes();
                     });
}

bool is_view_of_first(const OutputPlan& output) {
  return output.kind == OutputPlan::Kind::view && output.of == 0;
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

/// The versions that the ops would have moved which a kernel is made of (OpInfo::bumps_inside), if
/// they had been called with the tensors of the program.
class MovedVersions {
 public:
  explicit MovedVersions(const Call& call) {
    for (const at::Tensor& tensor : call.written)
      if (tensor.defined() && !tensor.is_inference())
        before_.emplace_back(tensor, tensor._version());
  }
  void complete() const {
    const auto has_moved = [](const auto& of) { return of.first._version() != of.second; };
    if (std::ranges::any_of(before_, has_moved)) return;  // (the kernel was given them after all)
    for (const auto& [tensor, version] : before_) tensor.unsafeGetTensorImpl()->bump_version();
  }

 private:
  std::vector<std::pair<at::Tensor, int64_t>> before_;
};

/// Asks for shapes and the like: answered from tensors without memory.
void answer_without_memory(const Call& call, torch::jit::Stack* results) {
  torch::jit::Stack stack;
  size_t next = 0;
  for (size_t i = 0; i < call.args.size(); ++i)
    stack.push_back(call.info.args[i].kind == run::ArgKind::tensor
                        ? without_memory(call, next, call.inputs[i])
                        : call.args[i]);
  const run::RealDispatch below;
  call.info.handle.callBoxed(stack);
  for (c10::IValue& result : stack) results->push_back(std::move(result));
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
  if (select_nested_sizes(info, *stack) || record_offset_view(info, *stack) ||
      write_temporary(info, stack) || answer_at_once(info, stack))
    return;
  if (autograd_looks_inside(info, *stack)) [[unlikely]]
    return run_with_autograd(info, stack);
  if (!info.bumps_inside) [[likely]]
    return record(read_call(info, stack), stack);
  Call call = read_call(info, stack);
  const MovedVersions moved(call);
  record(std::move(call), stack);
  moved.complete();
}

void Recorder::record(Call call, torch::jit::Stack* results) {
  const engine::Owing owing;
  note_backward_of_lazy();
  if (call.info.metadata_only) return answer_without_memory(call, results);
  if (call.must_run || depends_on_values(call) || call.info.returns_plain ||
      thread_mode().mode == Mode::sync)
    return run_to_discover(call, nullptr, results);
  if (const CallPlanRef plan = plan_of_offset_view(call)) return record_plan(call, *plan, results);
  PlanKey key;
  const bool keyed = make_key(call, key);
  CallPlanRef plan = keyed ? plans_.find(key) : nullptr;
  if (!plan) {
    counters_.plans.fetch_add(1, std::memory_order_relaxed);
    first_use();
    adopt_new_ops();
    {
      const run::IgnoredWarnings ignored;
      const run::Unseen unseen;
      plan = infer(call);
    }
    if (!plan) return run_to_discover(call, keyed ? &key : nullptr, results);
    const uint64_t number = window_.recorded();
    want_trials(call, number);
    run_due_trials(number);
    if (keyed) plans_.insert(key, call, plan);
  }
  if (plan->must_run || rewrites_plain(call, *plan) || grows_given_memory(call, *plan))
    return run_to_discover(call, nullptr, results);
  record_plan(call, *plan, results);
}

void Recorder::record_plan(Call& call, const CallPlan& plan, torch::jit::Stack* results) {
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
void Recorder::record_metadata(Call& call, const CallPlan& plan, torch::jit::Stack* results) {
  const auto value = [&](size_t tensor, run::GeometryRef look) {
    return make_ref<run::Value>(call.tensors[tensor].value->var_ref(), std::move(look));
  };
  c10::SmallVector<run::ValueRef, 2> views, after;
  for (const OutputPlan& output : plan.outputs)
    views.push_back(output.kind == OutputPlan::Kind::undefined
                        ? nullptr
                        : value(output.of, output.look(call.looks[output.of]->offset())));
  for (const CallPlan::Rewrite& rewrite : plan.rewrites)
    after.push_back(value(rewrite.tensor, rewrite.after));
  count_own_writes(call, call.tensors);  // it bumps as a write does
  Made made;
  push_recorded(call, plan, views, made, results);
  apply_rewrites(call, call.tensors, plan, after);
  run::Gil gil;
  make_python_objects(made);
  if (has_new_autograd_node()) note_forward(stacks::capture(), first_result(made, call));
  trace_record(call, nullptr);
}

/// `tried`: what became of it at the call, if it was.
void Recorder::record_node(Call& call, const CallPlan& plan, AtOnce& tried,
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

/// What an earlier call through the dispatcher has left; null: there was none.
CallPlanRef Recorder::known_plan(const Call& call) const {
  if (CallPlanRef plan = plan_of_offset_view(call)) return plan;
  PlanKey key;
  return make_key(call, key) ? plans_.find(key) : nullptr;
}

bool Recorder::record_direct(Call& call, bool view, at::Tensor& result) {
  const CallPlanRef plan = known_plan(call);
  if (!plan || plan->must_run || plan->only_metadata != view || !plan->rewrites.empty())
    return false;
  if (view && !is_view_of_first(plan->outputs[0])) return false;
  note_backward_of_lazy();
  find_forward_node();
  result = view ? record_view_direct(call, *plan) : record_node_direct(call, *plan);
  return true;
}

at::Tensor Recorder::record_view_direct(const Call& call, const CallPlan& plan) {
  run::GeometryRef look = plan.outputs[0].look(call.looks[0]->offset());
  at::Tensor result =
      make_lazy(make_ref<run::Value>(call.tensors[0].value->var_ref(), std::move(look)));
  if (has_new_autograd_node()) note_forward(stacks::capture(), at::Tensor());
  trace_record(call, nullptr);
  return result;
}

/// Undefined: it makes none, but writes its argument.
at::Tensor Recorder::record_node_direct(Call& call, const CallPlan& plan) {
  AtOnce tried;
  if (run_at_once(call, plan, tried)) {
    at::Tensor result = make_lazy(std::move(tried.values[0]));
    note_at_once(call, plan, tried, at::Tensor());
    return result;
  }
  const Ref<run::Node> node = build_node(call, false);
  c10::SmallVector<run::ValueRef, 2> values = add_outputs(*node, call, plan);
  at::Tensor result = values.empty() ? at::Tensor() : make_lazy(std::move(values[0]));
  capture_stacks(*node, at::Tensor());  // (an autograd.Function has a node, though this has none)
  submit(call, *node, tried);
  throttle(*node);
  return result;
}

/// To the engine, or, if it has thrown at the call, to those that read its results.
void Recorder::submit(const Call& call, run::Node& node, AtOnce& tried) {
  if (tried.thrown)
    fail_at_once(node, tried);
  else
    schedule(node);
  trace_record(call, &node);
}

}  // namespace lazyeng::record
