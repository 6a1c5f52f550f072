// csrc/record/recorder.h: from a call to a node in the window, and from there to the engine.
//
// Locks, the outer first: push_mutex_ orders pushes, so that the engine sees ops in the order in
// which they were recorded, whichever thread pushes; window_mutex_ orders recording. The pushing
// thread takes the window out under both and partitions it under the first only: recording does not
// wait for that. A thread that holds one never takes the GIL, never waits for an op and drops no
// value, so both may be taken with or without the GIL.
#pragma once

#include "csrc/engine/engine.h"
#include "csrc/fuse/step_plan.h"
#include "csrc/record/at_once.h"
#include "csrc/record/call.h"
#include "csrc/record/graph.h"
#include "csrc/record/infer.h"
#include "csrc/record/loop_cuts.h"
#include "csrc/record/sync_debug.h"
#include "csrc/record/thread_mode.h"

namespace lazyeng::record {

struct RecordCounters {
  std::atomic<uint64_t> recorded{0};
  std::atomic<uint64_t> syncs{0};         ///< places where the program waited
  std::atomic<uint64_t> plans{0};         ///< calls of a kind that was not known before
  std::atomic<uint64_t> fallbacks{0};     ///< ops run at the call because they cannot be recorded
  std::atomic<uint64_t> at_once{0};       ///< recorded ops that the engine never heard of
  std::atomic<uint64_t> without_node{0};  ///< of these: not counted in `recorded`
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
  void record_plan(Call& call, const Plan& plan, torch::jit::Stack* results);

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

  using Batch = std::vector<Ref<engine::Op>>;
  /// What stands in the window, as it would be pushed now: nodes, and groups for a look.
  Batch planned();
  /// Ops that have not run (graph.h): those in the window, and those that `vars` wait for.
  Graph pending(const std::vector<run::StorageVarRef>& vars);

  /// Pushes everything recorded so far to the engine.
  void flush();

  /// A window with this many nodes is not held any longer: pushes stay small. One with twice as
  /// many is pushed by the recording thread itself, as no worker has been free to fetch it.
  size_t full_window() const { return full_window_.load(std::memory_order_relaxed); }
  /// For benchmarks/windows.py: and how often an idle worker looks whether recording has paused.
  void set_window_bounds(size_t nodes, std::chrono::microseconds look) {
    full_window_.store(nodes, std::memory_order_relaxed);
    engine_->set_watch_every(look);
  }
  /// Whether windows are partitioned into groups from now on; otherwise every node runs alone.
  void set_fusion(bool on) { fusion_.store(on, std::memory_order_relaxed); }

  /// The thread of OpenMP's helpers. Between the two, while the engine runs, windows may be held.
  void start_threads();
  void stop_threads();

  engine::Engine& engine() { return *engine_; }
  const RecordCounters& counters() const { return counters_; }
  RecordCounters& counters() { return counters_; }
  /// How often each op was run at the call in async or deferred mode.

 private:
  void run_now(Call& call, const PlanKey* learn_under, torch::jit::Stack* results);
  void schedule(run::Node& node);
  bool answer_at_once(const run::OpInfo& info, torch::jit::Stack* stack);
  bool may_run_at_once(const Call& call, const Plan& plan) const;
  /// False: it is to be recorded, as a failed node if done.thrown says so.
  bool run_at_once(const Call& call, const Plan& plan, AtOnce& done);
  uint64_t trace_at_once(const Call& call, int64_t begin);
  /// Numbers the node, and fails what it writes.
  void fail_at_once(run::Node& node, AtOnce& done);
  void append(run::Node& node, bool for_reader);
  /// Whether what was recorded before is pushed first: always, or only what the node must follow.
  enum class Before : uint8_t { all, needed };
  void run_in_order(run::Node& node, Before before);
  bool run_unpushed(run::Node& node);
  void wake_worker();
  void offer_window(engine::QueueId queue, size_t size);
  bool is_left_to_launcher_locked(engine::QueueId caller) const;
  bool is_to_be_held_locked() const;
  bool completes_a_step_locked() const;
  void number_locked(run::Node& node);
  void enter_window_locked(run::Node& node);
  bool meets_unpushed_locked(const run::Node& node) const;
  /// Nodes that leave the window together.
  struct Taken {
    Batch nodes;
    std::vector<size_t> cuts;  ///< where a step plan ends and another begins (loop_cuts.h)
    uint64_t up_to = 0;        ///< number of the newest node that no longer stands in the window
  };
  Taken take_window_locked(bool whole);
  /// complete: up to the last cut; ready: async, and not held; wanted: of these, what a worker is
  /// to fetch; held: and is no more
  enum class Which : uint8_t { any, complete, ready, wanted, held };
  /// Pushes the window. The caller drops what it gets after it has let go of the lock.
  Batch push_window(Which which, engine::QueueId caller = engine::QueueId::cpu);
  Batch push_taken(Taken window);
  Batch group(Taken window);
  void push_unless_another_does();
  /// For workers that have nothing to run: pushes the window unless it is held, or left to another.
  /// True if it did.
  bool hungry(engine::QueueId queue);
  /// For one of them, every now and then: pushes a held window that has not grown since the last
  /// time, unless its device has enough to do, for a while (may_push_held). True while one is held.
  bool watch();
  uint64_t held_up_to() const;
  bool watched() const { return watched_.load(std::memory_order_relaxed); }
  bool may_wait_for_more(const run::Node& node) const;
  void run_due_trials(uint64_t number);
  void throttle(const run::Node& node);
  bool fits_when_fused();
  void flush_for_room();
  bool rest_may_stay();
  bool may_push_held(uint64_t newest);
  /// Waits for what was recorded that writes the var.
  void wait_until_written(run::StorageVar& var, WaitScope& waits);
  /// The same; plain tensors over its memory may be looked at then.
  void complete(run::StorageVar& var);
  Batch planned_locked();
  engine::FailurePtr wait_for_launched(c10::Device device);
  void wait_for_writes(const run::Node& node);
  void complete_eager_effects(const Call& call, const run::Node& node);
  std::string writer_name(const run::StorageVar& var);
  void wait_until_done(const std::function<engine::WaitResult(const engine::Interrupt&)>& wait);

  std::unique_ptr<engine::Engine> engine_;
  PlanCache plans_;
  RecordCounters counters_;

  std::atomic<bool> fusion_{true};
  std::atomic<size_t> full_window_{256};
  std::atomic<bool> watched_{false};  // windows may be held

  std::mutex push_mutex_;
  fuse::Partition partition_;               // guarded by push_mutex_
  fuse::StepPlans step_plans_{partition_};  // the same
  std::atomic<bool> in_transit_{false};     // nodes are in neither window_ nor the engine
  std::atomic<uint64_t> last_watched_{0};
  std::atomic<uint64_t> waited_with_{0};  // the newest node of a held window that was left alone
  std::atomic<unsigned> looks_{0};        // for how long
  std::atomic<unsigned> throttled_{0};    // threads that wait for room

  std::mutex window_mutex_;  // guards the rest
  Batch window_;
  engine::QueueId window_queue_ =
      engine::QueueId::cpu;  // that of all its nodes; cpu if they differ
  bool window_has_async_ = false;
  bool window_may_wait_ = false;  // its async nodes can all be fused
  bool window_is_held_ = false;   // and it is not full
  bool rest_to_watch_ = false;    // a held rest was left, which somebody may have to watch
  LoopCuts cuts_;
  std::atomic<uint64_t> held_up_to_{0};  // newest node of a held window, else 0; see append
  std::atomic<size_t> window_size_{0};
  uint64_t last_number_ = 0;
};

/// The recorder that the boxed kernels use; owned by the Python module. Null before import ends.
Recorder* current_recorder();
void set_current_recorder(Recorder* recorder);

/// Waits for a lazy tensor, and raises its error; any other is returned as it is.
at::Tensor plain_of(const at::Tensor& tensor);

}  // namespace lazyeng::record
