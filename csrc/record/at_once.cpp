// csrc/record/at_once.cpp: calls that run at the call, without a node.
//
// Held for its read, an op that is for the reader, in a program that reads all the time
// (read_habit.h), would run on the program's thread anyway. If all that it needs is there it runs
// now: without a node and without claims, and the engine never hears of it. Nobody can tell when it
// ran, as it makes something new, on the CPU, of values that are complete; what is recorded later,
// and may write these, finds it done.
//
// If its kernel throws, the call is recorded after all, as a node that has failed: like any other
// op it fails what is computed from it, and raises where that is read.
//
// So do a read of a number that is there, and a number written in place that nothing else waits
// for (`table[i, j] = x`): these read their arguments from the stack, without a Call.
#include "csrc/record/at_once.h"

#include <c10/core/GradMode.h>

#include "csrc/fuse/op_table.h"
#include "csrc/record/forward_stacks.h"
#include "csrc/record/lazy_tensor.h"
#include "csrc/record/node_builder.h"
#include "csrc/record/process/gate.h"
#include "csrc/record/recorder.h"
#include "csrc/record/special/factories.h"
#include "csrc/record/sync_debug.h"
#include "csrc/run/arguments.h"
#include "csrc/run/caller/as_engine_thread.h"
#include "csrc/run/caller/read_habit.h"
#include "csrc/run/cores/kernel_call.h"
#include "csrc/run/cores/parts.h"
#include "csrc/run/cores/spare_cores.h"
#include "csrc/run/executor.h"
#include "csrc/run/failures/kernel_warnings.h"
#include "csrc/run/failures/python_error.h"
#include "csrc/run/looked_up_rows.h"
#include "csrc/run/plain/own_writes.h"
#include "csrc/run/plain/plain_storage.h"
#include "csrc/run/python_ref.h"

namespace lazyeng::record {
namespace {

bool are_complete(const Call& call) {
  return std::ranges::all_of(call.tensors, &run::TensorArg::is_ready);
}

uint64_t bytes_of_results(const CallPlan& plan) {
  uint64_t bytes = 0;
  for (const OutputPlan& output : plan.outputs)
    if (output.geometry) bytes += output.geometry->extent_bytes();
  return bytes;
}

/// It makes something new of its arguments, and nobody can tell when. (What casts in its kernel has
/// its caller's modes from its node.)
bool is_free_of_order(const Call& call, const CallPlan& plan) {
  const auto is_view = [](const OutputPlan& output) {
    return output.kind == OutputPlan::Kind::view;
  };
  return call.info.aten && !call.info.writes && !call.info.random && !call.info.calls_cast_ops &&
         call.info.collective == run::Collectivity::none && plan.rewrites.empty() &&
         !plan.outputs.empty() && std::none_of(plan.outputs.begin(), plan.outputs.end(), is_view);
}

/// (Would it wait for a group?)
bool is_fusable(const Call& call, const CallPlan& plan) {
  return plan.outputs[0].geometry && fuse::usually_joins(call.info, *plan.outputs[0].geometry);
}

using Values = c10::SmallVector<run::ValueRef, 2>;

Values make_values(const Call& call, const CallPlan& plan) {
  Values values;
  c10::SmallVector<run::StorageVar*, 2> vars;
  for (const OutputPlan& output : plan.outputs) {
    if (output.kind == OutputPlan::Kind::undefined) {
      values.emplace_back();
      continue;
    }
    values.push_back(make_ref<run::Value>(
        make_ref<run::StorageVar>(output.geometry->extent_bytes()), output.geometry));
    vars.push_back(&values.back()->var());
  }
  join_siblings(call.info, vars);
  return values;
}

/// A tensor whose value is there, as kernels want it; undefined if it has to be waited for.
at::Tensor complete_tensor(const at::Tensor& tensor) {
  if (LazyImpl* lazy = lazy_impl(tensor)) {
    const run::ValueRef& value = lazy->value();
    // (On a device what is launched may not be there.)
    if (lazy->resized_outside() || !value->geometry().device().is_cpu() || value->var().awaited() ||
        value->var().failure() || run::plain_storages().has_moved(value->var()))
      return {};
    return value->real();
  }
  if (!recordable(tensor) || !tensor.is_cpu()) return {};
  const run::StorageVarRef var = run::plain_storages().find(tensor);
  if (!var) return tensor;
  if (var->awaited() || var->failure()) return {};
  run::plain_storages().release(*var);
  return tensor;
}

/// Replaces the tensors on the stack, all or none. False: some of them are not there.
bool complete_tensors(const run::OpInfo& info, torch::jit::Stack& stack) {
  const size_t count = info.args.size();
  c10::SmallVector<std::pair<c10::IValue*, at::Tensor>, 4> found;
  for (size_t i = 0; i < count; ++i) {
    if (run::is_list(info.args[i].kind)) return false;
    c10::IValue& input = torch::jit::peek(stack, i, count);
    if (!input.isTensor() || !input.toTensor().defined()) continue;
    at::Tensor tensor = complete_tensor(input.toTensor());
    if (!tensor.defined()) return false;
    if (!tensor.is_same(input.toTensor())) found.emplace_back(&input, std::move(tensor));
  }
  for (auto& [input, tensor] : found) *input = std::move(tensor);
  return true;
}

/// It writes its first argument, element by element, and returns that.
bool changes_elements(const run::OpInfo& info) {
  return info.aten && info.args[0].write && !info.args[0].silent && !info.random &&
         !info.moves_metadata &&
         (info.work == run::Work::elements || info.work == run::Work::copies) &&
         info.returns.size() == 1 && info.returns[0].written_arg == 0;
}

bool is_number(const c10::IValue& input) {
  return input.isTensor() && input.toTensor().defined() && input.toTensor().numel() == 1;
}

/// All its tensors are numbers.
bool is_of_numbers(const run::OpInfo& info, const torch::jit::Stack& stack) {
  const size_t count = info.args.size();
  for (size_t i = 0; i < count; ++i)
    if (info.args[i].kind == run::ArgKind::tensor && !is_number(torch::jit::peek(stack, i, count)))
      return false;
  return true;
}

run::StorageVarRef known_var(const at::Tensor& tensor) {
  const LazyImpl* lazy = lazy_impl(tensor);
  return lazy ? lazy->value()->var_ref() : run::plain_storages().find(tensor);
}

/// An argument has the written number's memory, as a tensor of its own. Kernels refuse some of
/// these, and see it by storages, which those of a plain tensor and of its view here are two.
bool is_read_as_another(const torch::jit::Stack& arguments) {
  const at::Tensor& written = arguments[0].toTensor();
  return std::any_of(arguments.begin() + 1, arguments.end(), [&](const c10::IValue& argument) {
    return argument.isTensor() && argument.toTensor().defined() &&
           !argument.toTensor().is_same(written) &&
           argument.toTensor().const_data_ptr() == written.const_data_ptr();
  });
}

/// Runs the kernel. False if it threw: the usual way finds out what becomes of that.
bool write_number(const run::OpInfo& info, torch::jit::Stack& arguments) {
  std::vector<c10::Warning> warned;
  try {
    const run::WarningsOfCall warnings(warned);
    const run::AsEngineThread as_engine_thread;
    info.handle.callBoxed(arguments);
  } catch (...) {
    return false;
  }
  if (warned.empty()) [[likely]]
    return true;
  run::Gil gil;
  run::keep_warnings(std::move(warned), {0, info.torch_name, {}, stacks::capture(), {}});
  return true;
}

/// Nothing that was recorded before reads or writes the memory, and nobody keeps a failure of it.
/// (Awaited is asked last once more: what stood in the window may have come to the engine
/// meanwhile.)
bool is_untouched(const run::StorageVar& var, const Window& window) {
  return !var.awaited() && window.all_pushed(var) && !var.awaited() && !var.failure() && var.idle();
}

/// The program reads its values: what is known of a plain tensor does not live long.
bool is_read(const at::Tensor& tensor, const run::StorageVar& var) {
  return !lazy_impl(tensor) || var.values_read.load(std::memory_order_relaxed);
}

/// Runs a counter (is_counter in schedule.cpp) without a Node. False: it may be one all the same.
bool write_number_at_once(const run::OpInfo& info, torch::jit::Stack& stack, const Window& window,
                          RecordCounters& counters) {
  if (!changes_elements(info) || !is_of_numbers(info, stack) || has_new_autograd_node())
    return false;
  const size_t count = info.args.size();
  const at::Tensor written = torch::jit::peek(stack, 0, count).toTensor();
  const run::StorageVarRef var = known_var(written);
  if (var && !(is_read(written, *var) && is_untouched(*var, window))) return false;
  torch::jit::Stack arguments(stack.end() - static_cast<ptrdiff_t>(count), stack.end());
  if (!complete_tensors(info, arguments) || is_read_as_another(arguments) ||
      !write_number(info, arguments))
    return false;
  note_backward_of_lazy();
  run::OwnWrites own_writes;
  var ? own_writes.count(written) : own_writes.count_without_var(written);
  counters.at_once.fetch_add(1, std::memory_order_relaxed);
  counters.without_node.fetch_add(1, std::memory_order_relaxed);
  torch::jit::drop(stack, count);
  stack.emplace_back(written);
  return true;
}

bool returns_no_tensor(const run::OpInfo& info) {
  return info.returns_plain && std::none_of(info.returns.begin(), info.returns.end(),
                                            [](const auto& made) { return made.tensor; });
}

void note_values_read(const run::OpInfo& info, const torch::jit::Stack& stack) {
  const c10::IValue& input = torch::jit::peek(stack, 0, info.args.size());
  if (info.args.size() != 1 || !input.isTensor()) return;
  if (const run::StorageVarRef var = known_var(input.toTensor()))
    var->values_read.store(true, std::memory_order_relaxed);
}

torch::jit::Stack real_arguments(const Call& call) {
  size_t next = 0;
  return run::arguments_with(call.info, call.args, [&] { return call.tensors[next++].real(); });
}

/// On the cores that an engine thread would have, or those of eager code.
void call_on_cores(const Call& call, const CallPlan& plan, torch::jit::Stack& stack, bool wide) {
  const auto results = [&](run::KernelCall::ResultLooks& looks) {
    for (const OutputPlan& output : plan.outputs) looks.push_back(output.geometry.get());
  };
  run::KernelCall(call.info, plan.width.get(), run::ThreadSettings::of_this_thread(), wide, results)
      .run(stack);
}

/// So few microseconds that other threads need not have the GIL, and nobody takes parts of it.
bool is_done_in_no_time(const CallPlan& plan) {
  constexpr uint64_t kFewBytes = 1 << 13;
  if (!plan.width) return bytes_of_results(plan) <= kFewBytes;
  return plan.width->cost() < run::kWorthSpinningCores &&
         plan.width->microseconds() < run::kWorthParts;
}

void call_kernel(const Call& call, const CallPlan& plan, torch::jit::Stack& stack) {
  run::check_rows(call.info, stack);
  if (is_done_in_no_time(plan)) {
    if (!plan.width) return call.info.handle.callBoxed(stack);
    return call_on_cores(call, plan, stack, /*wide=*/false);
  }
  const run::NoGil released;
  const Gate::Inside inside;  // (it may take the lock of those who have all cores)
  const run::ComputesForEngine as_a_worker_would;
  call_on_cores(call, plan, stack, !plan.small);
}

}  // namespace

/// `x.item()` and the like, once x is there; and what changes a number (below).
bool Recorder::answer_at_once(const run::OpInfo& info, torch::jit::Stack* stack) {
  if (!(returns_no_tensor(info) || info.writes) || info.random || !info.aten || run::tracing() ||
      info.collective != run::Collectivity::none || thread_mode().mode != Mode::async)
    return false;
  if (info.writes) return write_number_at_once(info, *stack, window_, counters_);
  note_values_read(info, *stack);
  if (!complete_tensors(info, *stack)) return false;
  counters_.fallbacks.fetch_add(1, std::memory_order_relaxed);
  run::read_habit.reads();
  note_backward_of_lazy();
  const run::RealDispatch below;
  info.handle.callBoxed(*stack);
  return true;
}

bool Recorder::may_run_at_once(const Call& call, const CallPlan& plan) const {
  if (!run::read_habit.expects_read() || thread_mode().mode != Mode::async || !window_.watched())
    return false;
  if (run::FailureRoot::alive.load(std::memory_order_relaxed) != 0 && in_backward_pass())
    return false;  // a node looks whether its forward op has failed
  if (!is_for_reader(plan) || !is_free_of_order(call, plan) || !are_complete(call)) return false;
  const bool joins = window_.fuses() && is_fusable(call, plan);
  const bool small = plan.small && bytes_of_results(plan) < run::kWideBytes;
  return run::read_habit.runs_at_once(joins, small) && !reports_waits();
}

bool Recorder::run_at_once(const Call& call, const CallPlan& plan, AtOnce& done) {
  if (!may_run_at_once(call, plan)) return false;
  const run::LongOp noted(plan.width.get(), run::ThreadSettings::of_this_thread().num_threads);
  done.begin = run::trace_time();
  done.values = make_values(call, plan);
  try {
    const run::WarningsOfCall warnings(done.warned);
    const bool grad_mode = c10::GradMode::is_enabled();
    const run::AsEngineThread as_engine_thread;
    const c10::AutoGradMode as_of_caller(grad_mode);  // (some kernels ask: as in Node::execute)
    torch::jit::Stack stack = real_arguments(call);
    call_kernel(call, plan, stack);
    run::install_results({call.info, plan.kind, call.tensors}, done.values, stack);
  } catch (...) {
    // (What lacks memory goes the usual way, and waits until others have let go of theirs.)
    if (!run::is_out_of_memory(std::current_exception())) done.thrown = std::current_exception();
    done.values.clear();
    return false;
  }
  run::read_habit.records(/*soon_done=*/true, is_fusable(call, plan));
  counters_.at_once.fetch_add(1, std::memory_order_relaxed);
  counters_.without_node.fetch_add(1, std::memory_order_relaxed);
  if (done.begin != 0) [[unlikely]]
    done.number = trace_at_once(call, done.begin);
  return true;
}

/// Returns the number that stands for the call in the trace.
uint64_t Recorder::trace_at_once(const Call& call, int64_t begin) {
  const uint64_t number = window_.next_number();
  run::trace(
      {.kind = run::TraceEvent::Kind::run, .op = &call.info, .number = number, .begin = begin});
  return number;
}

void note_at_once(const Call& call, const CallPlan& plan, AtOnce& done, const at::Tensor& result) {
  find_forward_node();
  const bool noted = has_new_autograd_node();
  if (!noted && done.number == 0 && done.warned.empty()) [[likely]]
    return;
  const stacks::StackRef stack = stacks::capture();
  if (noted) {
    const stacks::StackRef forward = forward_stack();
    note_forward(forward ? forward : stack, result);
  }
  run::keep_warnings(std::move(done.warned), {done.number, call.info.torch_name,
                                              run::describe(call.tensors), stack, forward_stack()});
  if (call.begin != 0)
    run::trace({.kind = run::TraceEvent::Kind::record,
                .op = &call.info,
                .number = done.number,
                .begin = call.begin,
                .bytes = bytes_of_results(plan),
                .stack = stack});
}

void Recorder::fail_at_once(run::Node& node, AtOnce& done) {
  window_.number(node);
  counters_.at_once.fetch_add(1, std::memory_order_relaxed);
  if (done.begin != 0) [[unlikely]]
    run::trace({.kind = run::TraceEvent::Kind::run,
                .op = &node.info,
                .number = node.number,
                .begin = done.begin,
                .failed = true});
  run::keep_warnings(std::move(done.warned), run::op_of(node));
  const engine::FailurePtr failure = node.fail(done.thrown);
  engine::Engine::fail_unpushed(node, failure);
  node.finish(failure);
  run::throw_if_interrupt(failure);
}

}  // namespace lazyeng::record
