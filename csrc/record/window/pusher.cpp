// csrc/record/window/pusher.cpp: who pushes what, and when.
#include "csrc/record/window/pusher.h"

#include <iterator>

#include "csrc/engine/reserve.h"
#include "csrc/fuse/group.h"
#include "csrc/run/caller/read_habit.h"
#include "csrc/run/cores/openmp_team.h"
#include "csrc/run/device/device_queues.h"
#include "csrc/run/device/launch_log.h"

namespace lazyeng::record {

void Pusher::flush() {
  const engine::Owing owing;
  if (!window_.has_unpushed()) return;
  Batch pushed;
  std::lock_guard pushing(mutex_);
  pushed = push(Window::Which::any);
}

void Pusher::flush_for_room(bool async) {
  if (!async || !window_.has_small_rest(engine_.limits())) return flush();
  Batch pushed;
  std::lock_guard pushing(mutex_);
  pushed = push(Window::Which::complete);
}

Batch Pusher::push_before(run::Node& node, bool everything) {
  Window::Taken taken = window_.number_and_take(node, everything);
  return taken.nodes.empty() ? Batch() : push_taken(std::move(taken));
}

void Pusher::offer(const Window::Appended& window) {
  if (window.size >= 2 * window_.full()) return push_unless_another_does();
  if (window.held) {
    if (window.to_watch && !engine_.is_watched()) wake_worker();
  } else if (!run::launches(window.queue)) {
    wake_worker();
  } else if (!engine_.is_busy(window.queue)) {
    engine_.nudge(window.queue);
  } else if (window.size >= window_.full()) {
    wake_worker();
  }
}

/// An idle worker fetches the window, or watches it if it is held: its partition and its appends
/// cost as much as recording it did, so they are not this thread's work while another is free.
void Pusher::wake_worker() {
  if (engine_.has_idle_worker()) engine_.nudge();
}

void Pusher::push_unless_another_does() {
  Batch pushed;
  std::unique_lock pushing(mutex_, std::try_to_lock);
  if (pushing) pushed = push(Window::Which::ready);
}

// ---- With the lock.

Batch Pusher::push(Window::Which which, engine::QueueId caller) {
  Window::Taken taken = window_.take(which, caller);
  if (taken.nodes.empty()) return {};
  const bool rest_is_held = taken.rest_is_held;
  Batch pushed = push_taken(std::move(taken));
  // (The program may record nothing more. A watcher that stops looks once more, and sees the rest:
  // see Engine::is_watched.)
  if (rest_is_held && !engine_.is_watched()) wake_worker();
  return pushed;
}

/// Recording goes on meanwhile.
Batch Pusher::push_taken(Window::Taken taken) {
  const engine::Owing owing;
  const uint64_t up_to = taken.up_to;
  Batch ops = group(std::move(taken));
  // (What a thread that reads soon pushes it waits for: that is no recording.)
  if (!run::read_habit.has_it()) run::openmp_helpers().program_records();
  engine_.push(std::span<Ref<engine::Op>>(ops));
  window_.arrived(up_to);
  return ops;
}

/// What is pushed for the nodes: each piece between two cuts is grouped on its own.
Batch Pusher::group(Window::Taken taken) {
  foreign_kernels_.label(taken.nodes);
  if (taken.nodes.size() == 1 || !window_.fuses()) return std::move(taken.nodes);
  Batch ops;
  taken.cuts.push_back(taken.nodes.size());
  auto next = std::make_move_iterator(taken.nodes.begin());
  for (const size_t end : taken.cuts) {
    const auto last = std::make_move_iterator(taken.nodes.begin() + static_cast<ptrdiff_t>(end));
    Batch piece = step_plans_.run(Batch(next, last));
    if (step_plans_.spared()) engine_.forgo(step_plans_.spared());
    std::move(piece.begin(), piece.end(), std::back_inserter(ops));
    next = last;
  }
  return ops;
}

Batch Pusher::planned_locked() {
  const Batch nodes = window_.nodes();
  return window_.fuses() ? partition_.plan(nodes) : nodes;
}

// ---- Looks at what would be pushed.

Batch Pusher::planned() {
  std::lock_guard pushing(mutex_);
  return planned_locked();
}

bool Pusher::fits_when_fused() {
  if (window_.size() > window_.full()) return false;
  Batch planned;
  std::lock_guard pushing(mutex_);
  planned = planned_locked();
  for (const Ref<engine::Op>& op : planned)
    if (const auto* group = dynamic_cast<const fuse::Group*>(op.get()))
      engine_.forgo(fuse::lower_costs(*group));
  last_watched_.store(0, std::memory_order_relaxed);  // (that was no pause of the program)
  return !engine_.above_limits();
}

// ---- For workers.

bool Pusher::hungry(engine::QueueId queue) {
  if (window_.size() == 0) return false;
  Batch pushed;
  std::lock_guard pushing(mutex_);
  // (What launches looks here before it counts as idle, too.)
  pushed = push(Window::Which::wanted, queue);
  return !pushed.empty();
}

bool Pusher::watch(bool only_asked) {
  const uint64_t newest = window_.held_up_to();
  if (only_asked) return newest != 0;
  const uint64_t seen = last_watched_.exchange(newest, std::memory_order_relaxed);
  if (newest == 0) return false;
  if (newest != seen || !may_push_held(newest)) return true;
  Batch pushed;
  std::unique_lock pushing(mutex_, std::try_to_lock);
  // (Whoever has the lock pushes, or looks at what would be pushed, which takes its time too.)
  if (!pushing || last_watched_.load(std::memory_order_relaxed) != newest ||
      window_.held_up_to() != newest)
    return true;
  pushed = push(Window::Which::held);  // (it may be another one by now, of deferred nodes)
  return true;
}

/// Of a held window that has not grown, and whose newest node that is. Not at once while its device
/// is at work, if the rest of a graph is to come, or if the program waits for room: pushed later
/// the window costs nothing then, and may be complete; to end anywhere makes other groups, and no
/// graph. Without the lock: the driver may wait, or tell that the device is lost.
bool Pusher::may_push_held(uint64_t newest) {
  constexpr unsigned kMostLooks = 200, kLooksForGraph = 4;
  const Window::Held held = window_.held();
  if (!held.device) return true;
  if (held.left_to_launcher) return false;
  unsigned enough = wait_for_room_.load(std::memory_order_relaxed) ? kMostLooks : 0;
  if (held.completes_a_step) enough = std::max(enough, kLooksForGraph);
  if (left_alone_.exchange(newest, std::memory_order_relaxed) != newest)
    looks_.store(0, std::memory_order_relaxed);
  const unsigned looks = looks_.fetch_add(1, std::memory_order_relaxed) + 1;
  if (looks > kMostLooks) return true;
  engine::FailurePtr failure;
  return looks > enough && !run::is_running(*held.device, failure);
}

}  // namespace lazyeng::record
