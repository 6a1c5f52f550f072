// csrc/record/schedule.cpp: what becomes of a recorded node: the window, or a run at the call, in
// its turn or without the engine; and what has to be complete when the call returns.
#include "csrc/fuse/op_table.h"
#include "csrc/record/kept_values.h"
#include "csrc/record/node_builder.h"
#include "csrc/record/process/fork.h"
#include "csrc/record/process/gate.h"
#include "csrc/record/recorder.h"
#include "csrc/record/special/reducers.h"
#include "csrc/record/sync_debug.h"
#include "csrc/run/caller/as_engine_thread.h"
#include "csrc/run/caller/read_habit.h"
#include "csrc/run/device/launch_order.h"
#include "csrc/run/executor.h"
#include "csrc/run/plain/plain_storage.h"
#include "csrc/run/python_ref.h"

namespace lazyeng::record {
namespace {

/// Whether nothing that the engine has uses what the node writes.
bool may_write(const run::Node& node) {
  return std::ranges::all_of(node.written_vars,
                             [](const run::StorageVar* var) { return var->idle(); });
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

constexpr const char* kWritesOutside = "a write to a plain tensor, or a draw, outside lazy()";

/// Nobody sees old memory from now on: the node's writes count as pending. Whether somebody might.
bool guard_plain_memory(const run::Node& node) {
  if (node.discovery) return false;
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

void Recorder::schedule(run::Node& node) {
  const std::vector<run::StorageVarRef> kept = kept_for_checks(node);
  if (uses_memory_of_others(node)) [[unlikely]] {
    WaitScope waits("it uses memory that others may write unseen (numpy, DLPack, a sparse tensor)");
    if (waits.wanted() && !node.inputs_are_ready()) waits.begin(node.info.torch_name);
    run_in_order(node, Before::needed);
    for (run::StorageVar* var : node.written_vars) run::plain_storages().release(*var);
    return waits.report();
  }
  const bool async = thread_mode().mode == Mode::async;
  if (async && is_counter(node)) {
    if (!run_unpushed(node)) run_in_order(node, Before::needed);
    return;
  }
  { const run::LongOp noted(node.width.get(), node.settings.num_threads); }  // (it takes no time)
  const bool soon_done =
      node.brief || (node.width && node.width->is_for_reader(node.settings.num_threads));
  const bool fusable = window_.fuses() && fuse::may_join(node);
  const bool for_reader = async && run::read_habit.records(soon_done, fusable) && window_.watched();
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
  if (!window_.number_if(node, [&] { return node.inputs_are_ready() && may_write(node); }))
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

/// What eager code around us may look at without coming through our kernels is complete when the
/// call returns: outside lazy() plain tensors and generators; inside it plain tensors just filled
/// with random numbers (the result of torch.randn), and buckets of gradients (reducers.h).
void Recorder::complete_eager_effects(const Call& call, const run::Node& node) {
  const bool inside = thread_mode().inside();
  WaitScope waits(kWritesOutside);
  if (writes_bucket(call) || (call.writes_plain && (!inside || call.info.random))) {
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
