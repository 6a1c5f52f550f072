// csrc/record/window/window.cpp: numbers, what is held, and what is taken out.
#include "csrc/record/window/window.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "csrc/fuse/graphs/step_graph.h"
#include "csrc/fuse/op_table.h"
#include "csrc/run/device/device_queues.h"

namespace lazyeng::record {
namespace {

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

Window::Appended Window::append(run::Node& node, bool async, bool for_reader) {
  std::lock_guard lock(mutex_);
  number_locked(node);
  if (async) may_wait_ = (nodes_.empty() || may_wait_) && (for_reader || may_wait_for_more(node));
  enter(node);
  const bool was_held = is_held_;
  if (async) note_held(node.number);
  has_async_ |= async;
  const Appended appended{
      .size = nodes_.size(),
      .queue = queue_,
      .held = is_held_,
      .to_watch = is_held_ && (!was_held || (async && std::exchange(rest_to_watch_, false)))};
  // seq_cst: either the worker that stops watching (WorkerPool::watch) sees this size, or we see
  // that nobody watches. That we see one that goes to sleep idle is argued at has_idle_worker.
  // (Deferred nodes are none of their business.)
  size_.store(appended.size, async ? std::memory_order_seq_cst : std::memory_order_release);
  return appended;
}

void Window::number(run::Node& node) {
  std::lock_guard lock(mutex_);
  number_locked(node);
}

uint64_t Window::next_number() {
  std::lock_guard lock(mutex_);
  return ++last_number_;
}

void Window::number_locked(run::Node& node) {
  node.number = ++last_number_;
  // Only the lock's holder writes it: no locked instruction.
  recorded_.store(recorded_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  for (run::StorageVar* var : node.written_vars) var->writer = {&node.info, node.stack};
}

void Window::enter(run::Node& node) {
  const bool launched = run::launches(node.queue);
  cuts_.enters(
      {node.plan, node.number, nodes_.size(), launched, launched ? node.cost_bytes : 0},
      [&](uint64_t number) { return starts_anew(node, number); },
      [&] { return fuse::may_join(node); });
  for (const run::TensorArg& arg : node.tensors)
    if (arg.value) arg.value->var().last_access = node.number;
  for (run::StorageVar* var : node.written_vars) {
    var->last_access = node.number;
    var->note_recorded_write(node.number);
  }
  queue_ = nodes_.empty() || queue_ == node.queue ? node.queue : engine::QueueId::cpu;
  nodes_.emplace_back(Ref<engine::Op>(&node));
}

/// Whether a node in the window, or in transit, reads or writes what the node does.
bool Window::meets_unpushed(const run::Node& node) const {
  return std::any_of(node.tensors.begin(), node.tensors.end(),
                     [](const run::TensorArg& arg) {
                       return arg.value && !arg.value->var().all_pushed();
                     }) ||
         std::any_of(node.written_vars.begin(), node.written_vars.end(),
                     [](const run::StorageVar* var) { return !var->all_pushed(); });
}

bool Window::all_pushed(const run::StorageVar& var) const {
  std::lock_guard lock(mutex_);
  return var.all_pushed();
}

run::StorageVar::Writer Window::writer_of(const run::StorageVar& var) const {
  std::lock_guard lock(mutex_);
  return var.writer;
}

Batch Window::nodes() const {
  std::lock_guard lock(mutex_);
  return nodes_;
}

// ---- What is held, and for whom.

bool Window::may_wait_for_more(const run::Node& node) const {
  return fuses() && watched() && fuse::may_join(node);
}

bool Window::is_to_be_held() const {
  if (nodes_.empty() || nodes_.size() >= full() || cuts_.heavy()) return false;
  return may_wait_ || completes_a_step();
}

/// It may become part of a CUDA graph if all of it is there: the rest of a loop's step, or of a
/// piece of one, is to come.
bool Window::completes_a_step() const {
  return run::launches(queue_) && cuts_.will_cut() && fuse::cuda_graphs() && watched() && fuses();
}

/// Not a lossy answer: the launching thread asks for the window once it has launched what it has,
/// and sees what had entered it before this was asked.
bool Window::is_left_to_launcher(engine::QueueId caller) const {
  return run::launches(queue_) && queue_ != caller && nodes_.size() < full() &&
         engine_.is_busy(queue_);
}

void Window::note_held(uint64_t newest) {
  is_held_ = is_to_be_held();
  held_up_to_.store(is_held_ ? newest : 0, std::memory_order_relaxed);
}

/// (Without the lock: held_up_to_ is written before size_.)
uint64_t Window::held_up_to() const {
  return size() == 0 ? 0 : held_up_to_.load(std::memory_order_relaxed);
}

Window::Held Window::held() const {
  std::lock_guard lock(mutex_);
  if (nodes_.empty() || !run::launches(queue_)) return {};
  return {.device = static_cast<const run::Node&>(*nodes_.back()).device,
          .left_to_launcher = is_left_to_launcher(engine::QueueId::cpu),
          .completes_a_step = completes_a_step()};
}

bool Window::has_small_rest(engine::Limits limits) const {
  std::lock_guard lock(mutex_);
  if (!run::launches(queue_)) return false;
  const size_t cut = cuts_.up_to_last(nodes_.size());
  uint64_t bytes = 0;
  for (size_t i = cut; i < nodes_.size(); ++i)
    bytes += static_cast<const run::Node&>(*nodes_[i]).cost_now();
  return bytes <= limits.max_pending_bytes / 4 && nodes_.size() - cut <= limits.max_pending_ops / 4;
}

// ---- Taking nodes out.

bool Window::wants(Which which, engine::QueueId caller) const {
  const bool ready = has_async_ && !is_held_;
  switch (which) {
    case Which::any:
    case Which::complete:
      return true;
    case Which::ready:
      return ready;
    case Which::wanted:
      return ready && !is_left_to_launcher(caller);
    case Which::held:
      return is_held_ && !is_left_to_launcher(caller);
  }
  return false;
}

Window::Taken Window::take(Which which, engine::QueueId caller) {
  std::lock_guard lock(mutex_);
  if (nodes_.empty() || !wants(which, caller)) return {};
  return take_locked(/*whole=*/which == Which::any || which == Which::held);
}

Window::Taken Window::number_and_take(run::Node& node, bool always) {
  std::lock_guard lock(mutex_);
  Taken taken;
  if (!nodes_.empty() && (always || meets_unpushed(node))) taken = take_locked(/*whole=*/true);
  number_locked(node);
  return taken;
}

/// Whoever finds the nodes gone from the window finds in_transit_.
Window::Taken Window::take_locked(bool whole) {
  in_transit_.store(true, std::memory_order_seq_cst);
  const size_t count = whole ? nodes_.size() : cuts_.up_to_last(nodes_.size());
  Taken taken{.nodes = {}, .cuts = {}, .up_to = last_number_};
  // (With graphs a step is the same pieces, whether somebody reads or not.)
  const bool keep = run::launches(queue_) && fuse::cuda_graphs();
  taken.cuts = whole ? cuts_.take_all(last_number_, keep) : cuts_.take_up_to_last(last_number_);
  Batch rest;
  rest.reserve(full());
  if (count < nodes_.size()) {
    taken.up_to = static_cast<const run::Node&>(*nodes_[count - 1]).number;
    std::move(nodes_.begin() + static_cast<ptrdiff_t>(count), nodes_.end(),
              std::back_inserter(rest));
    nodes_.resize(count);
  }
  taken.nodes = std::exchange(nodes_, std::move(rest));
  has_async_ &= !nodes_.empty();
  may_wait_ &= !nodes_.empty();
  note_held(last_number_);
  rest_to_watch_ = taken.rest_is_held = is_held_;
  size_.store(nodes_.size(), std::memory_order_seq_cst);
  return taken;
}

void Window::arrived(uint64_t up_to) {
  run::StorageVar::pushed_up_to.store(up_to, std::memory_order_release);
  in_transit_.store(false, std::memory_order_seq_cst);
}

}  // namespace lazyeng::record
