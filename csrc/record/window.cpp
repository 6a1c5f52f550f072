// csrc/record/window.cpp: the window of recorded nodes, and when it goes to the engine.
//
// In async mode a node waits in the window only while every worker is busy: an idle worker fetches
// the window (hungry), and whoever records while a worker is idle wakes it. But a window of nothing
// but nodes that can be fused is held while it grows, and so are a few small ops of a program that
// often reads (read_habit.h). A held window goes when a node is recorded that is neither, when a
// value is read, when it is full, or when recording pauses, which an idle worker looks for every
// now and then (watch). Of heavy steps over the same input, on a device, each is let go of as soon
// as the next one begins (loop_cuts.h). With CUDA graphs the window of a loop is held until it is
// cut, whatever is in it.
//
// A window of nothing but launches on one device can do no more than wait for the thread that
// launches there (run/device_queues.h), so as long as that one is busy nobody else fetches it: it
// grows, and nobody has to be woken. The launching thread fetches it by itself. When it is full, an
// idle worker takes it: to group it is then neither the work of the thread that launches nor of the
// one that records, which are what a loop waits for.
//
// In deferred mode nodes stay until a value is read, the program
// synchronizes, or the run-ahead bound is reached.
#include "csrc/engine/reserve.h"
#include "csrc/fuse/op_table.h"
#include "csrc/fuse/step_graph.h"
#include "csrc/fuse/trials.h"
#include "csrc/record/device_bounds.h"
#include "csrc/record/gate.h"
#include "csrc/record/read_habit.h"
#include "csrc/record/recorder.h"
#include "csrc/record/sync_debug.h"
#include "csrc/run/device_queues.h"
#include "csrc/run/launch_log.h"
#include "csrc/run/openmp_team.h"
#include "csrc/run/python_ref.h"
#include "csrc/run/unseen.h"

namespace lazyeng::record {
namespace {

constexpr uint64_t kLookEvery = 8;
constexpr uint64_t kLookAtBytes = 1 << 12;

/// It reads something, nothing that was written after that node, and changes none of it.
bool starts_anew(const run::Node& node, uint64_t number) {
  bool reads = false;
  for (const run::TensorArg& arg : node.tensors) {
    if (!arg.value) continue;
    if (arg.written || arg.value->var().last_write() > number) return false;
    reads = true;
  }
  return reads;
}

}  // namespace

void Recorder::number_locked(run::Node& node) {
  node.number = ++last_number_;
  // Only the lock's holder writes it: no locked instruction.
  counters_.recorded.store(counters_.recorded.load(std::memory_order_relaxed) + 1,
                           std::memory_order_relaxed);
  for (run::StorageVar* var : node.written_vars) var->writer = {&node.info, node.stack};
}

void Recorder::enter_window_locked(run::Node& node) {
  const bool launched = run::launches(node.queue);
  cuts_.enters(
      {node.plan, node.number, window_.size(), launched, launched ? node.cost_bytes : 0},
      [&](uint64_t number) { return starts_anew(node, number); },
      [&] { return fuse::may_join(node); });
  for (const run::TensorArg& arg : node.tensors)
    if (arg.value) arg.value->var().last_access = node.number;
  for (run::StorageVar* var : node.written_vars) {
    var->last_access = node.number;
    var->note_recorded_write(node.number);
  }
  window_queue_ =
      window_.empty() || window_queue_ == node.queue ? node.queue : engine::QueueId::cpu;
  window_.emplace_back(Ref<engine::Op>(&node));
}

/// Whether a node in the window, or on its way from there, reads or writes what the node does.
bool Recorder::meets_unpushed_locked(const run::Node& node) const {
  return std::any_of(node.tensors.begin(), node.tensors.end(),
                     [](const run::TensorArg& arg) {
                       return arg.value && !arg.value->var().all_pushed();
                     }) ||
         std::any_of(node.written_vars.begin(), node.written_vars.end(),
                     [](const run::StorageVar* var) { return !var->all_pushed(); });
}

std::string Recorder::describe_writer(const run::StorageVar& var) {
  run::StorageVar::Writer writer;
  {
    std::lock_guard lock(window_mutex_);
    writer = var.writer;
  }
  if (!writer.info) return "";
  const std::string line = stacks::innermost_user_line(writer.stack);
  return line.empty() ? writer.info->name : writer.info->name + " @ " + line;
}

Recorder::Batch Recorder::planned() {
  std::lock_guard pushing(push_mutex_);
  return planned_locked();
}

/// With push_mutex_: until it is let go of, the nodes stay in the window.
Recorder::Batch Recorder::planned_locked() {
  Batch nodes;
  {
    std::lock_guard lock(window_mutex_);
    nodes = window_;
  }
  return fusion_.load(std::memory_order_relaxed) ? partition_.plan(nodes) : nodes;
}

Graph Recorder::pending(const std::vector<run::StorageVarRef>& vars) {
  return make_graph(planned(), vars);
}

/// `for_reader`: it may be held until somebody reads.
void Recorder::append(run::Node& node, bool for_reader) {
  const bool async = thread_mode().mode == Mode::async;
  engine_->admit(node.cost_bytes);
  bool held, first;
  size_t size;
  engine::QueueId queue;
  {
    std::lock_guard lock(window_mutex_);
    number_locked(node);
    if (async) {
      window_may_wait_ =
          (window_.empty() || window_may_wait_) && (for_reader || may_wait_for_more(node));
    }
    enter_window_locked(node);
    const bool was_held = window_is_held_;
    if (async) {
      window_is_held_ = is_to_be_held_locked();
      held_up_to_.store(window_is_held_ ? node.number : 0, std::memory_order_relaxed);
    }
    window_has_async_ |= async;
    size = window_.size();
    held = window_is_held_;
    queue = window_queue_;
    first = held && (!was_held || (async && std::exchange(rest_to_watch_, false)));
    // seq_cst: either the worker that is going to sleep sees this size, or we see the worker idle.
    // (Deferred nodes are none of its business.)
    window_size_.store(size, async ? std::memory_order_seq_cst : std::memory_order_release);
  }
  if (!async) return;
  if (size >= 2 * full_window())
    push_unless_another_does();
  else if (!held)
    offer_window(queue, size);
  else if (first && !engine_->is_watched())
    wake_worker();
}

bool Recorder::is_to_be_held_locked() const {
  if (window_.empty() || window_.size() >= full_window() || cuts_.heavy()) return false;
  return window_may_wait_ || completes_a_step_locked();
}

/// It may become part of a CUDA graph if all of it is there: the rest of a loop's step, or of a
/// piece of one, is to come.
bool Recorder::completes_a_step_locked() const {
  return run::launches(window_queue_) && cuts_.will_cut() && fuse::cuda_graphs() && watched() &&
         fusion_.load(std::memory_order_relaxed);
}

/// To those who are to fetch it, if they sleep.
void Recorder::offer_window(engine::QueueId queue, size_t size) {
  if (!run::launches(queue)) return wake_worker();
  if (!engine_->is_busy(queue))
    engine_->nudge(queue);
  else if (size >= full_window())
    wake_worker();
}

/// With window_mutex_. Not a lossy answer: that thread calls hungry() once it has launched what it
/// has, and sees what had entered the window before this was asked.
bool Recorder::is_left_to_launcher_locked(engine::QueueId caller) const {
  return run::launches(window_queue_) && window_queue_ != caller &&
         window_.size() < full_window() && engine_->is_busy(window_queue_);
}

/// An idle worker fetches the window, or watches it if it is held: its partition and its appends
/// cost as much as recording it did, so they are not this thread's work while another is free.
void Recorder::wake_worker() {
  if (engine_->has_idle_worker()) engine_->nudge();
}

bool Recorder::may_wait_for_more(const run::Node& node) const {
  return fusion_.load(std::memory_order_relaxed) && watched() && fuse::may_join(node);
}

/// Number of the newest node of a window that is held, 0 if none is. Without the lock: append
/// writes held_up_to_ before window_size_.
uint64_t Recorder::held_up_to() const {
  if (window_size_.load(std::memory_order_seq_cst) == 0) return 0;
  return held_up_to_.load(std::memory_order_relaxed);
}

/// With window_mutex_ and push_mutex_. Whoever finds the nodes gone from the window finds
/// in_transit_.
Recorder::Taken Recorder::take_window_locked(bool whole) {
  in_transit_.store(true, std::memory_order_seq_cst);
  const size_t count = whole ? window_.size() : cuts_.up_to_last(window_.size());
  Taken taken{.nodes = {}, .cuts = {}, .up_to = last_number_};
  // (With graphs a step is the same pieces, whether somebody reads or not.)
  const bool keep = run::launches(window_queue_) && fuse::cuda_graphs();
  taken.cuts = whole ? cuts_.take_all(last_number_, keep) : cuts_.take_up_to_last(last_number_);
  Batch rest;
  rest.reserve(full_window());
  if (count < window_.size()) {
    taken.up_to = static_cast<const run::Node&>(*window_[count - 1]).number;
    std::move(window_.begin() + static_cast<ptrdiff_t>(count), window_.end(),
              std::back_inserter(rest));
    window_.resize(count);
  }
  taken.nodes = std::exchange(window_, std::move(rest));
  window_has_async_ &= !window_.empty();
  window_may_wait_ &= !window_.empty();
  rest_to_watch_ = window_is_held_ = is_to_be_held_locked();
  held_up_to_.store(window_is_held_ ? last_number_ : 0, std::memory_order_relaxed);
  window_size_.store(window_.size(), std::memory_order_seq_cst);
  return taken;
}

/// What is pushed for the nodes: each piece between two cuts is grouped on its own.
Recorder::Batch Recorder::group(Taken window) {
  if (window.nodes.size() == 1 || !fusion_.load(std::memory_order_relaxed))
    return std::move(window.nodes);
  Batch ops;
  window.cuts.push_back(window.nodes.size());
  auto next = std::make_move_iterator(window.nodes.begin());
  for (const size_t end : window.cuts) {
    const auto last = std::make_move_iterator(window.nodes.begin() + static_cast<ptrdiff_t>(end));
    Batch piece = step_plans_.run(Batch(next, last));
    if (step_plans_.spared()) engine_->forgo(step_plans_.spared());
    std::move(piece.begin(), piece.end(), std::back_inserter(ops));
    next = last;
  }
  return ops;
}

/// With push_mutex_, not with window_mutex_: recording goes on meanwhile.
Recorder::Batch Recorder::push_taken(Taken window) {
  const engine::Owing owing;
  const uint64_t up_to = window.up_to;
  Batch ops = group(std::move(window));
  run::openmp_helpers().program_records();
  engine_->push(std::span<Ref<engine::Op>>(ops));
  run::StorageVar::pushed_up_to.store(up_to, std::memory_order_release);
  in_transit_.store(false, std::memory_order_seq_cst);
  return ops;
}

/// With push_mutex_.
Recorder::Batch Recorder::push_window(Which which, engine::QueueId caller) {
  Taken window;
  bool rest_is_held = false;
  {
    std::lock_guard lock(window_mutex_);
    const bool ready = window_has_async_ && !window_is_held_;
    const bool wanted = which == Which::any        ? true
                        : which == Which::complete ? true
                        : which == Which::ready    ? ready
                        : which == Which::wanted
                            ? ready && !is_left_to_launcher_locked(caller)
                            : window_is_held_ && !is_left_to_launcher_locked(caller);
    if (window_.empty() || !wanted) return {};
    window = take_window_locked(/*whole=*/which == Which::any || which == Which::held);
    rest_is_held = window_is_held_;
  }
  Batch pushed = push_taken(std::move(window));
  // (The program may record nothing more. A watcher that stops looks once more, and sees the rest.)
  if (rest_is_held && !engine_->is_watched()) wake_worker();
  return pushed;
}

void Recorder::flush() {
  const engine::Owing owing;
  // In this order: what leaves the window is in transit before.
  if (window_size_.load(std::memory_order_seq_cst) == 0 &&
      !in_transit_.load(std::memory_order_seq_cst))
    return;
  Batch pushed;  // let go of after the lock: a node may be the last to hold somebody's memory
  std::lock_guard pushing(push_mutex_);
  pushed = push_window(Which::any);
}

void Recorder::push_unless_another_does() {
  Batch pushed;
  std::unique_lock pushing(push_mutex_, std::try_to_lock);
  if (pushing) pushed = push_window(Which::ready);
}

bool Recorder::hungry(engine::QueueId queue) {
  if (window_size_.load(std::memory_order_seq_cst) == 0) return false;
  Batch pushed;
  std::lock_guard pushing(push_mutex_);
  // (What launches looks here before it counts as idle, too.)
  pushed = push_window(Which::wanted, queue);
  return !pushed.empty();
}

bool Recorder::watch() {
  const uint64_t newest = held_up_to();
  const uint64_t seen = last_watched_.exchange(newest, std::memory_order_relaxed);
  if (newest == 0) return false;
  if (newest != seen || !may_push_held(newest)) return true;
  Batch pushed;
  std::unique_lock pushing(push_mutex_, std::try_to_lock);
  // (Whoever has the lock pushes, or looks at what would be pushed, which takes its time too.)
  if (!pushing || last_watched_.load(std::memory_order_relaxed) != newest || held_up_to() != newest)
    return true;
  pushed = push_window(Which::held);  // (it may be another one by now, of deferred nodes)
  return true;
}

/// Of a held window that has not grown, and whose newest node that is. Not at once while its device
/// is at work, if the rest of a graph is to come, or if the program waits for room: pushed later
/// the window costs nothing then, and may be complete; to end anywhere makes other groups, and no
/// graph. Without push_mutex_: the driver may wait, or tell that the device is lost.
bool Recorder::may_push_held(uint64_t newest) {
  constexpr unsigned kMostLooks = 200, kLooksForGraph = 4;
  std::optional<c10::Device> device;
  unsigned enough = throttled_.load(std::memory_order_relaxed) ? kMostLooks : 0;
  {
    std::lock_guard lock(window_mutex_);
    if (!run::launches(window_queue_) || window_.empty()) return true;
    if (is_left_to_launcher_locked(engine::QueueId::cpu)) return false;
    device = static_cast<const run::Node&>(*window_.back()).device;
    if (completes_a_step_locked()) enough = std::max(enough, kLooksForGraph);
  }
  if (waited_with_.exchange(newest, std::memory_order_relaxed) != newest)
    looks_.store(0, std::memory_order_relaxed);
  const unsigned looks = looks_.fetch_add(1, std::memory_order_relaxed) + 1;
  if (looks > kMostLooks) return true;
  engine::FailurePtr failure;
  return looks > enough && !run::is_running(*device, failure);
}

/// Results that nobody holds when their group runs get no memory: of a long chain over large
/// tensors all but the last. Cut where the sum of all exceeds the bound, it would go over memory
/// once more for each piece.
bool Recorder::fits_when_fused() {
  if (window_size_.load(std::memory_order_relaxed) > full_window()) return false;
  Batch planned;  // let go of after the lock
  std::lock_guard pushing(push_mutex_);
  planned = planned_locked();
  for (const Ref<engine::Op>& op : planned)
    if (const auto* group = dynamic_cast<const fuse::Group*>(op.get()))
      engine_->forgo(fuse::lower_costs(*group));
  last_watched_.store(0, std::memory_order_relaxed);  // (that was no pause of the program)
  return !engine_->above_limits();
}

/// On a device what stands before the last cut, if the rest alone is far from the bounds.
void Recorder::flush_for_room() {
  if (!rest_may_stay()) return flush();
  Batch pushed;
  std::lock_guard pushing(push_mutex_);
  pushed = push_window(Which::complete);
}

bool Recorder::rest_may_stay() {
  if (thread_mode().mode != Mode::async) return false;
  std::lock_guard lock(window_mutex_);
  if (!run::launches(window_queue_)) return false;
  const size_t cut = cuts_.up_to_last(window_.size());
  uint64_t bytes = 0;
  for (size_t i = cut; i < window_.size(); ++i)
    bytes += static_cast<const run::Node&>(*window_[i]).cost_now();
  const engine::Limits limits = engine_->limits();
  return bytes <= limits.max_pending_bytes / 4 &&
         window_.size() - cut <= limits.max_pending_ops / 4;
}

/// Of ops that join groups if they give eager's bits (csrc/fuse/trials.h).
void Recorder::run_due_trials(uint64_t number) {
  if (!fuse::trials_are_due(number) || !fusion_.load(std::memory_order_relaxed)) return;
  const run::NoGil released;
  const Gate::Inside inside;
  const run::Unseen unseen;
  fuse::run_trials(number);
}

void Recorder::throttle(const run::Node& node) {
  // What is pending stands in a cache line that the workers write: small ops look now and then.
  if (node.number % kLookEvery != 0 && node.cost_now() < kLookAtBytes) return;
  run_due_trials(node.number);
  if (!node.device.is_cpu()) bound_by_memory_of(node.device, *engine_);
  if (!engine_->above_limits() || fits_when_fused()) return;
  WaitScope waits("more is recorded and not run than the bounds of run-ahead allow");
  if (waits.wanted()) waits.begin(node.info.torch_name);
  flush_for_room();
  throttled_.fetch_add(1, std::memory_order_relaxed);
  const std::unique_ptr<std::atomic<unsigned>, void (*)(std::atomic<unsigned>*)> over(
      &throttled_, [](std::atomic<unsigned>* count) { --*count; });  // (an interrupt throws)
  wait_until_done(
      [&](const engine::Interrupt& interrupt) { return engine_->wait_below_limits(interrupt); });
  waits.report();
}

}  // namespace lazyeng::record
