// csrc/record/recorder.h: from a call to a node in the window (window/window.h), which the pusher
// (window/pusher.h) brings to the engine; and waiting for what was recorded (waits.cpp).
//
// Not every call gets so far. By the time it takes, a call may instead
//
//   have its answer already           record_offset_view, answer_at_once   no node, nothing runs
//   be a view or another shape        record_metadata                      no node, nothing runs
//   be for a reader, and all is there run_at_once (at_once.cpp)            no node, runs here
//   change a number, likewise         run_unpushed (schedule.cpp)          a node, runs here
//   touch memory of others            run_in_order (schedule.cpp)          in its turn, runs here
//   give what only its run tells      run_to_discover (discover.cpp)       in its turn, runs here
//
// "In its turn": behind all that it has to follow, as if it had been pushed.
#pragma once

#include "csrc/engine/engine.h"
#include "csrc/record/at_once.h"
#include "csrc/record/call.h"
#include "csrc/record/graph.h"
#include "csrc/record/metadata/infer.h"
#include "csrc/record/sync_debug.h"
#include "csrc/record/thread_mode.h"
#include "csrc/record/window/pusher.h"

namespace lazyeng::record {

struct RecordCounters {
  std::atomic<uint64_t> syncs{0};         ///< places where the program waited
  std::atomic<uint64_t> plans{0};         ///< calls of a kind that was not known before
  std::atomic<uint64_t> fallbacks{0};     ///< ops run at the call because they cannot be recorded
  std::atomic<uint64_t> at_once{0};       ///< recorded ops that the engine never heard of
  std::atomic<uint64_t> without_node{0};  ///< of these: not counted in Window::recorded
};

class Recorder {
 public:
  explicit Recorder(std::unique_ptr<engine::Engine> engine);
  ~Recorder();

  /// The boxed kernel: takes the arguments off the stack and leaves the results.
  void record(const run::OpInfo& info, torch::jit::Stack* stack);

  /// Records a call that was read already; the results in the order of the schema.
  void record(Call call, torch::jit::Stack* results);

  /// Records a call that has a plan.
  void record_plan(Call& call, const CallPlan& plan, torch::jit::Stack* results);

  /// Records a call whose plan is known already, past the dispatcher (direct.h); false: nothing is
  /// recorded. `result` is left undefined by ops that return what they write. GIL.
  bool record_direct(Call& call, bool view, at::Tensor& result);

  // ---- waiting. The GIL is let go of meanwhile; Ctrl-C throws python_error.
  /// Until every recorded write to the var is complete.
  void wait_for(run::StorageVar& var);
  /// The same, then throws what failed, as the Python exception.
  void wait_and_check(const run::Value& value);
  /// Before its memory is used: where plain tensors have moved it, the engine follows.
  void follow_moves(run::StorageVar& var);
  /// Until the device has done what was launched on it; throws if it failed. The CPU: at once.
  void wait_for_device(c10::Device device);
  /// Until everything recorded is complete, and devices have done it.
  void wait_for_all();
  /// Until every recorded write to a plain tensor is complete.
  void wait_for_plain_writes();
  /// Until everything recorded that reads or writes memory of plain tensors is complete.
  void finish_plain_reads();
  /// Ends the failures of plain tensors' vars, which somebody else may hold (a graph of autograd, a
  /// view): from here on they stand for the memory as it is. What was recorded before still fails.
  void forget_failures(std::vector<Ref<engine::Var>> plain);
  /// Until everything recorded on the var, which is made when this is asked, has run: reads too.
  void finish_accesses(run::StorageVar& var);
  /// A plain tensor over the value's memory, for the program, which may write it.
  at::Tensor hand_out(const run::Value& value);
  /// For others that give the program plain tensors over the var's memory, after they are made:
  /// reads that were recorded before then have run. (Later ones look for changes: PlainRead.)
  void note_handed_out(run::StorageVar& var);
  /// Until all recorded draws from random generators are done.
  void wait_for_generators();

  /// "aten::mm @ train.py:42" of the newest recorded op that writes the var, "" if it is complete.
  /// GIL.
  std::string describe_writer(const run::StorageVar& var);

  /// Ops that have not run (graph.h): those in the window, and those that `vars` wait for.
  Graph pending(const std::vector<run::StorageVarRef>& vars);

  /// Pushes everything recorded so far to the engine.
  void flush() { pusher_.flush(); }

  /// The thread of OpenMP's helpers. Between the two, while the engine runs, windows may be held.
  void start_threads();
  void stop_threads();

  engine::Engine& engine() { return *engine_; }
  Window& window() { return window_; }
  Pusher& pusher() { return pusher_; }
  const RecordCounters& counters() const { return counters_; }

 private:
  // recorder.cpp
  void record_metadata(Call& call, const CallPlan& plan, torch::jit::Stack* results);
  void record_node(Call& call, const CallPlan& plan, AtOnce& tried, torch::jit::Stack* results);
  void submit(const Call& call, run::Node& node, AtOnce& tried);
  CallPlanRef known_plan(const Call& call) const;
  at::Tensor record_view_direct(const Call& call, const CallPlan& plan);
  at::Tensor record_node_direct(Call& call, const CallPlan& plan);

  // discover.cpp
  void run_to_discover(Call& call, const PlanKey* learn_under, torch::jit::Stack* results);
  bool record_failed(Call& call, const run::Node& node, const PlanKey& key,
                     torch::jit::Stack* results);
  void learn_from(const Call& call, const run::Node& node, const PlanKey& key);

  // at_once.cpp
  bool answer_at_once(const run::OpInfo& info, torch::jit::Stack* stack);
  bool may_run_at_once(const Call& call, const CallPlan& plan) const;
  /// False: it is to be recorded, as a failed node if done.thrown says so.
  bool run_at_once(const Call& call, const CallPlan& plan, AtOnce& done);
  uint64_t trace_at_once(const Call& call, int64_t begin);
  /// Numbers the node, and fails what it writes.
  void fail_at_once(run::Node& node, AtOnce& done);

  // schedule.cpp
  void schedule(run::Node& node);
  /// Whether what was recorded before is pushed first: always, or only what the node must follow.
  enum class Before : uint8_t { all, needed };
  void run_in_order(run::Node& node, Before before);
  bool run_unpushed(run::Node& node);
  void wait_for_writes(const run::Node& node);
  void complete_eager_effects(const Call& call, const run::Node& node);

  // window/run_ahead.cpp
  void run_due_trials(uint64_t number);
  void throttle(const run::Node& node);

  // waits.cpp
  /// Waits for what was recorded that writes the var.
  void wait_until_written(run::StorageVar& var, WaitScope& waits);
  /// The same; plain tensors over its memory may be looked at then.
  void complete(run::StorageVar& var);
  engine::FailurePtr wait_for_launched(c10::Device device);
  void wait_until_done(const std::function<engine::WaitResult(const engine::Interrupt&)>& wait);

  const std::unique_ptr<engine::Engine> engine_;
  Window window_{*engine_};
  Pusher pusher_{window_, *engine_};
  PlanCache plans_;
  RecordCounters counters_;
};

/// The recorder that the boxed kernels use; owned by the Python module. Null before import ends.
Recorder* current_recorder();
void set_current_recorder(Recorder* recorder);

/// Waits for a lazy tensor, and raises its error; any other is returned as it is.
at::Tensor plain_of(const at::Tensor& tensor);
/// Waits for writes of a plain tensor that a block has recorded, and raises the error of one.
void wait_for_plain(const at::Tensor& tensor);

}  // namespace lazyeng::record
