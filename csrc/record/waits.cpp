// csrc/record/waits.cpp: waiting for what was recorded.
#include <algorithm>

#include "csrc/engine/reserve.h"
#include "csrc/record/generators.h"
#include "csrc/record/graph.h"
#include "csrc/record/lazy_tensor.h"
#include "csrc/record/process/fork.h"
#include "csrc/record/process/gate.h"
#include "csrc/record/process/signals.h"
#include "csrc/record/recorder.h"
#include "csrc/record/sync_debug.h"
#include "csrc/run/caller/caller_modes.h"
#include "csrc/run/caller/read_habit.h"
#include "csrc/run/cores/openmp_team.h"
#include "csrc/run/cores/program_time.h"
#include "csrc/run/cores/spare_cores.h"
#include "csrc/run/device/launch_log.h"
#include "csrc/run/device/launch_order.h"
#include "csrc/run/failures/kernel_warnings.h"
#include "csrc/run/plain/plain_storage.h"
#include "csrc/run/plain/plain_values.h"
#include "csrc/run/python_ref.h"

namespace lazyeng::record {
namespace {

/// A version of vars that has not failed, in the memory as it is.
struct FreshVersion final : engine::Op {
  engine::FailurePtr run() noexcept override { return nullptr; }
};

/// A kernel of a custom op that waits for what can only come after its own op would wait for ever.
/// (Not found if another kernel, which waits too, stands between the two.)
class KernelWait {
 public:
  explicit KernelWait(run::StorageVar& var) : var_(var) {}

  /// Polled; looks once, as most waits are over sooner.
  bool waits_for_itself() {
    constexpr int kLookAt = 10;  // that is, after 0.2 s
    if (!node_ || ++polls_ != kLookAt) return false;
    const Graph needed = make_graph({}, {run::StorageVarRef(&var_)});
    itself_ = std::any_of(needed.begin(), needed.end(),
                          [&](const GraphNode& each) { return each.node.get() == node_; });
    return itself_;
  }
  void check() const {
    TORCH_CHECK(!itself_, "[", node_->info.torch_name,
                "] the kernel waits for a result that needs the result of this very call: it reads "
                "a tensor that is no argument of it, and that was computed after it was called");
  }

 private:
  run::StorageVar& var_;
  const run::Node* const node_ = run::InCustomKernel::node();
  int polls_ = 0;
  bool itself_ = false;
};

/// What is polled during one wait: a wait long enough to be polled leaves the cores to the engine.
class Polled {
 public:
  explicit Polled(const engine::Engine& engine) : engine_(engine) {
    run::program_time().note_this_thread();
    run::spare_cores().program_waits(true, begin_);
  }
  Polled(const Polled&) = delete;
  ~Polled() {
    const auto now = std::chrono::steady_clock::now();
    run::spare_cores().program_waits(false, now);
    if (now - begin_ > kMoment) run::openmp_helpers().program_has_waited();
    if (long_) run::openmp_helpers().program_waits(false);
  }

  bool operator()() {
    if (!std::exchange(long_, true)) run::openmp_helpers().program_waits(true);
    raised_ = engine_.is_abandoned() ? never_runs() : raised_by_signal();
    return raised_ != nullptr;
  }

  /// Also if the wait has come to its end all the same: by then its last op was this thread's own.
  const std::exception_ptr& raised() const { return raised_; }

 private:
  static constexpr std::chrono::microseconds kMoment{100};

  /// Of what a daemon thread or a destructor waits for when the program ends.
  static std::exception_ptr never_runs() {
    return std::make_exception_ptr(
        std::runtime_error("lazyeng: the program was interrupted while it ended: what this waits "
                           "for does not run any more"));
  }

  const engine::Engine& engine_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  bool long_ = false;
  std::exception_ptr raised_;
};

}  // namespace

void Recorder::wait_until_done(
    const std::function<engine::WaitResult(const engine::Interrupt&)>& wait) {
  const engine::Owing owing;
  std::exception_ptr raised;
  const EngineWhileForking while_forking(*this);
  {
    const run::NoGil released;
    const Gate::Inside inside;
    const engine::GuestScope guest(*engine_);
    Polled polled(*engine_);
    wait([&] { return polled(); });
    raised = polled.raised();
  }
  if (raised) std::rethrow_exception(raised);
}

std::string Recorder::describe_writer(const run::StorageVar& var) {
  const run::StorageVar::Writer writer = window_.writer_of(var);
  if (!writer.info) return "";
  const std::string line = stacks::innermost_user_line(writer.stack);
  return line.empty() ? writer.info->name : writer.info->name + " @ " + line;
}

Graph Recorder::pending(const std::vector<run::StorageVarRef>& vars) {
  return make_graph(pusher_.planned(), vars);
}

void Recorder::wait_for(run::StorageVar& var) {
  run::read_habit.reads();
  complete(var);
}

void Recorder::wait_until_written(run::StorageVar& var, WaitScope& waits) {
  if (!var.awaited()) return;
  const Gate::Inside from_the_first_lock;
  run::read_habit.reads();
  counters_.syncs.fetch_add(1, std::memory_order_relaxed);
  if (waits.wanted()) {
    const run::OpInfo* const writer = window_.writer_of(var).info;
    waits.begin(writer ? writer->torch_name : "");
  }
  KernelWait kernel(var);
  wait_until_done([&](const engine::Interrupt& interrupt) {
    if (var.has_unpushed()) flush();
    return engine_->wait_for_var(var, [&] { return kernel.waits_for_itself() || interrupt(); });
  });
  kernel.check();
}

void Recorder::complete(run::StorageVar& var) {
  WaitScope waits("its value is read");
  wait_until_written(var, waits);
  run::give_to_current_stream(var);
  run::plain_storages().release(var);
  run::deliver_warnings();
  waits.report();
}

void Recorder::follow_moves(run::StorageVar& var) {
  // (Reads that have not run fail, as the tensor was changed. A kernel may be one of them. Other
  // threads may read on: the old memory must not be gone from under them, nor be read after this.)
  while (run::plain_storages().has_moved(var)) {
    const bool in_kernel = run::InCustomKernel::active();
    if (!in_kernel) finish_accesses(var);
    if (var.idle()) return run::plain_storages().follow_resize(var, /*through_user_face=*/true);
    if (in_kernel) return;
  }
}

void Recorder::wait_and_check(const run::Value& value) {
  wait_for(value.var());
  follow_moves(value.var());
  if (engine::FailurePtr failure = value.var().failure()) run::throw_python_error(failure);
}

engine::FailurePtr Recorder::wait_for_launched(c10::Device device) {
  engine::FailurePtr failure;
  wait_until_done([&](const engine::Interrupt& interrupt) {
    bool interrupted = false;
    failure = run::wait_for_device(device, interrupt, interrupted);
    return interrupted ? engine::WaitResult::interrupted : engine::WaitResult::done;
  });
  return failure;
}

void Recorder::wait_for_device(c10::Device device) {
  if (device.is_cpu()) return;
  if (engine::FailurePtr failure = wait_for_launched(device)) run::throw_python_error(failure);
}

void Recorder::wait_for_all() {
  if (run::InCustomKernel::active()) return;
  WaitScope waits("it waits for everything");
  if (waits.wanted() && engine_->counters().pending_ops != 0) waits.begin("");
  counters_.syncs.fetch_add(1, std::memory_order_relaxed);
  wait_until_done([&](const engine::Interrupt& interrupt) {
    flush();
    return engine_->wait_for_all(interrupt);
  });
  for (const c10::Device device : run::busy_devices()) wait_for_launched(device);
  run::plain_storages().release_complete();
  run::plain_values().drop_unused();
  run::deliver_warnings();
  waits.report();
}

void Recorder::wait_for_plain_writes() {
  if (run::InCustomKernel::active()) return;
  WaitScope waits("plain tensors and generators that the block writes are complete at its end");
  {
    const run::WarningsHeld held;
    for (const run::StorageVarRef& var : run::plain_storages().guarded()) complete(*var);
    for (const run::StorageVarRef& var : run::plain_storages().written_elsewhere()) complete(*var);
    wait_for_generators();
  }
  run::deliver_warnings();
  waits.report();
}

void Recorder::finish_plain_reads() {
  if (run::InCustomKernel::active()) return;
  WaitScope waits("what reads plain tensors is done at the end of the block");
  {
    const run::NoGil released;
    const Gate::Inside inside;
    flush();
  }
  run::plain_values().drop_unused();  // (which the program no longer has)
  if (engine_->counters().pending_ops != 0 && run::plain_storages().may_be_in_use()) {
    // (All that was pushed before: a wait for these vars alone would be a write to each, which
    // other threads would take for the program's.)
    if (waits.wanted()) waits.begin("");
    wait_until_done(
        [&](const engine::Interrupt& interrupt) { return engine_->wait_for_all(interrupt); });
  }
  waits.report();
}

void Recorder::forget_failures(std::vector<Ref<engine::Var>> plain) {
  const engine::Owing owing;
  auto fresh = make_ref<FreshVersion>();
  for (Ref<engine::Var>& var : plain)
    if (var->failure()) fresh->add_write(std::move(var), /*overwrites=*/true);
  if (fresh->claims().empty()) return;
  const run::NoGil released;
  const Gate::Inside inside;
  flush();
  const std::unique_lock pushing = pusher_.lock();
  engine_->admit(0);
  engine_->push(std::move(fresh));
}

void Recorder::finish_accesses(run::StorageVar& var) {
  const Gate::Inside from_the_first_lock;
  bool over = window_.all_pushed(var) && var.idle();
  // (First, so that it is told of: a worker may have it done as soon as it is pushed.)
  if (!over && var.awaited()) wait_for(var);
  if (!over) {
    const run::NoGil released;
    const Gate::Inside inside;
    flush();
    over = var.idle();
  }
  // (What was launched on other streams of a device is over for the engine, not for that.)
  if (over) return run::give_to_current_stream(var);
  {
    const run::NoGil released;
    const Gate::Inside inside;
    // (It fails if the version before has failed. Without the lock of pushes: it has to stand
    // behind what the flush has pushed, and nothing orders it and what other threads push just
    // now.)
    auto fence = make_ref<FreshVersion>();
    fence->add_write(run::StorageVarRef(&var));
    engine_->admit(0);
    engine_->push(std::move(fence));
  }
  wait_for(var);
}

at::Tensor Recorder::hand_out(const run::Value& value) {
  at::Tensor plain = value.plain();
  note_handed_out(value.var());
  return plain;
}

void Recorder::note_handed_out(run::StorageVar& var) {
  if (var.handed_out.load(std::memory_order_acquire) || run::InCustomKernel::active()) return;
  finish_accesses(var);
  var.handed_out.store(true, std::memory_order_release);
}

void Recorder::wait_for_generators() {
  WaitScope waits("the state of the random generators is used");
  for (const run::StorageVarRef& var : all_generator_vars()) complete(*var);
  waits.report();
}

at::Tensor plain_of(const at::Tensor& tensor) {
  LazyImpl* const lazy = lazy_impl(tensor);
  if (!lazy) return tensor;
  const Gate::Inside inside;
  const run::ValueRef value = lazy->value();
  current_recorder()->wait_and_check(*value);
  return value->plain();
}

void wait_for_plain(const at::Tensor& tensor) {
  if (lazy_impl(tensor) || !tensor.has_storage()) return;
  const run::StorageVarRef var = run::plain_storages().find(tensor);
  if (!var) return;
  current_recorder()->wait_for(*var);
  if (engine::FailurePtr failure = var->failure()) run::throw_python_error(failure);
}

}  // namespace lazyeng::record
