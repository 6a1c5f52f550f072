// csrc/record/window/pusher.h: from the window to the engine.
//
// Who pushes: a worker that has nothing to run fetches the window (hungry), one that watches a held
// window lets go of it when recording has paused (watch), a thread that reads or has recorded too
// much flushes it, and one that runs an op itself pushes what the op must follow. A window with
// twice the nodes that a full one has is pushed by the recording thread, as no worker has been free
// to fetch it.
//
// Locks, the outer first: that of pushes (lock()) orders them, so that the engine sees ops in the
// order in which they were recorded, whichever thread pushes; the window's own orders recording.
// The pushing thread takes the nodes out under both and partitions them under the first only:
// recording does not wait for that. A thread that holds one never takes the GIL, never waits for an
// op and drops no value, so both may be taken with or without the GIL. (So what was pushed is let
// go of after the lock: a node may be the last to hold somebody's memory.)
#pragma once

#include <atomic>
#include <mutex>

#include "csrc/engine/engine.h"
#include "csrc/fuse/foreign_kernels.h"
#include "csrc/fuse/step_plan.h"
#include "csrc/record/window/window.h"

namespace lazyeng::record {

class Pusher {
 public:
  Pusher(Window& window, engine::Engine& engine) : window_(window), engine_(engine) {}
  Pusher(const Pusher&) = delete;

  /// Orders pushes for as long as it is held.
  std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }

  /// Everything recorded so far.
  void flush();
  /// What stands before the last cut, or everything if the rest is much.
  void flush_for_room(bool async);
  /// With the lock: what the node, which gets its number here, has to come after, or everything.
  Batch push_before(run::Node& node, bool everything);
  /// After a node was appended, in async mode: wakes those who are to fetch the window, if they
  /// sleep, or pushes it here.
  void offer(const Window::Appended& window);

  /// What stands in the window, as it would be pushed now: nodes, and groups for a look.
  Batch planned();
  /// Lowers what nodes in the window cost to what they will cost in their groups. Results that
  /// nobody holds when their group runs get no memory: of a long chain over large tensors all but
  /// the last. Cut where the sum of all exceeds the bounds of run-ahead, it would go over memory
  /// once more for each piece. Whether what is pending is within the bounds then.
  bool fits_when_fused();

  // ---- For workers that have nothing to run (Engine::set_hungry, set_watch).
  /// Pushes the window unless it is held, or left to another queue. True if it did.
  bool hungry(engine::QueueId queue);
  /// Every now and then: pushes a held window that has not grown since the last time, unless its
  /// device has enough to do, for a while (may_push_held), or it is only asked. True while one is
  /// held.
  bool watch(bool only_asked);

  /// While a thread waits for room: a held window need not be pushed sooner for its sake.
  class WaitsForRoom {
   public:
    explicit WaitsForRoom(Pusher& pusher) : count_(pusher.wait_for_room_) { ++count_; }
    WaitsForRoom(const WaitsForRoom&) = delete;
    ~WaitsForRoom() { --count_; }

   private:
    std::atomic<unsigned>& count_;
  };

 private:
  Batch push(Window::Which which, engine::QueueId caller = engine::QueueId::cpu);
  Batch push_taken(Window::Taken taken);
  Batch group(Window::Taken taken);
  Batch planned_locked();
  void push_unless_another_does();
  void wake_worker();
  bool may_push_held(uint64_t newest);

  Window& window_;
  engine::Engine& engine_;

  std::mutex mutex_;
  fuse::ForeignKernels foreign_kernels_;    // guarded by mutex_
  fuse::Partition partition_;               // the same
  fuse::StepPlans step_plans_{partition_};  // the same

  std::atomic<uint64_t> last_watched_{0};  // the newest node of a held window that was looked at
  std::atomic<uint64_t> left_alone_{0};    // of one that a device's work let stand
  std::atomic<unsigned> looks_{0};         // for how long
  std::atomic<unsigned> wait_for_room_{0};
};

}  // namespace lazyeng::record
