// csrc/record/window/window.h: nodes that were recorded and have not gone to the engine.
//
// In async mode a node waits in the window only while every worker is busy: an idle worker fetches
// the window, and whoever records while a worker is idle wakes it (pusher.h). But a window of
// nothing but nodes that can be fused is *held* while it grows, and so are a few small ops of a
// program that often reads (read_habit.h). A held window goes when a node is recorded that is
// neither, when a value is read, when it is full, or when recording pauses, which an idle worker
// looks for every now and then. Of heavy steps over the same input, on a device, each is let go of
// as soon as the next one begins (loop_cuts.h). With CUDA graphs the window of a loop is held until
// it is cut, whatever is in it.
//
// A window of nothing but launches on one device can do no more than wait for the thread that
// launches there (run/device/device_queues.h), so as long as that one is busy nobody else fetches
// it: it grows, and nobody has to be woken. The launching thread fetches it by itself. When it is
// full, an idle worker takes it: to group it is then neither the work of the thread that launches
// nor of the one that records, which are what a loop waits for.
//
// In deferred mode nodes stay until a value is read, the program synchronizes, or the run-ahead
// bound is reached.
//
// Thread safe. Nodes are taken out by one thread at a time, which holds the lock of pushes; until
// they are in the engine's hands they are *in transit*. A thread that is in here takes no other
// lock than a var's, no GIL, waits for nothing and drops no value.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "csrc/engine/engine.h"
#include "csrc/record/window/loop_cuts.h"
#include "csrc/run/node.h"

namespace lazyeng::record {

using Batch = std::vector<Ref<engine::Op>>;

class Window {
 public:
  explicit Window(const engine::Engine& engine) : engine_(engine) {}
  Window(const Window&) = delete;

  // ---- Settings, at any time.
  /// With this many nodes it is not held any longer: pushes stay small.
  size_t full() const { return full_.load(std::memory_order_relaxed); }
  void set_full(size_t nodes) { full_.store(nodes, std::memory_order_relaxed); }
  /// Whether its nodes become groups; otherwise each runs alone.
  bool fuses() const { return fuses_.load(std::memory_order_relaxed); }
  void set_fuses(bool on) { fuses_.store(on, std::memory_order_relaxed); }
  /// While there are threads that look after a held window, so that it may be.
  bool watched() const { return watched_.load(std::memory_order_relaxed); }
  void set_watched(bool on) { watched_.store(on, std::memory_order_relaxed); }

  // ---- Recording.
  struct Appended {
    size_t size = 0;        ///< of the window, with the node
    engine::QueueId queue;  ///< of all its nodes; cpu if they differ
    bool held = false;
    bool to_watch = false;  ///< it is held, and was not before: nobody may be watching it
  };
  /// Numbers the node, which stands in the window from then on. `for_reader`: it may be held until
  /// somebody reads. Nodes of deferred mode are not `async`.
  Appended append(run::Node& node, bool async, bool for_reader);
  /// Numbers a node that never stands in the window.
  void number(run::Node& node);
  /// The same, unless a node that has not been pushed reads or writes what the node does, or
  /// `ready()` says no, which is asked meanwhile: false then.
  template <class Ready>
  bool number_if(run::Node& node, Ready ready) {
    std::lock_guard lock(mutex_);
    if (meets_unpushed(node) || !ready()) return false;
    number_locked(node);
    return true;
  }
  /// For a call without a node.
  uint64_t next_number();

  // ---- Asking.
  uint64_t recorded() const { return recorded_.load(std::memory_order_relaxed); }  ///< nodes
  size_t size() const { return size_.load(std::memory_order_seq_cst); }
  /// False: all that was recorded is in the engine's hands.
  bool has_unpushed() const {
    // In this order: what leaves the window is in transit before.
    return size() != 0 || in_transit_.load(std::memory_order_seq_cst);
  }
  /// Whether all that reads or writes the var is in the engine's hands.
  bool all_pushed(const run::StorageVar& var) const;
  /// The newest node that writes the var.
  run::StorageVar::Writer writer_of(const run::StorageVar& var) const;
  /// With the lock of pushes: until it is let go of, the nodes stay in the window.
  Batch nodes() const;
  /// Number of the newest node of a window that is held, 0 if none is.
  uint64_t held_up_to() const;
  /// What a held window waits for.
  struct Held {
    std::optional<c10::Device> device;  ///< none: for nothing but more nodes
    bool left_to_launcher = false;
    bool completes_a_step = false;
  };
  Held held() const;
  /// Of what stands behind the last cut of launches on a device: whether it is a quarter of the
  /// bounds at most.
  bool has_small_rest(engine::Limits limits) const;

  // ---- Taking nodes out, with the lock of pushes.
  /// Nodes that leave the window together.
  struct Taken {
    Batch nodes;
    std::vector<size_t> cuts;  ///< where a step plan ends and another begins (loop_cuts.h)
    uint64_t up_to = 0;        ///< number of the newest node that no longer stands in the window
    bool rest_is_held = false;
  };
  /// any: all of it; complete: up to the last cut, if there is one; ready: the same, if it is async
  /// and not held; wanted: the same, unless it is left to another queue than the one that asks;
  /// held: all of a window that is held and not left to another.
  enum class Which : uint8_t { any, complete, ready, wanted, held };
  Taken take(Which which, engine::QueueId caller = engine::QueueId::cpu);
  /// Numbers a node that never stands in the window. Takes all of it if `always`, or if the node
  /// has to come after something that stands there.
  Taken number_and_take(run::Node& node, bool always);
  /// What was taken up to that number is in the engine's hands.
  void arrived(uint64_t up_to);

 private:
  void number_locked(run::Node& node);
  void enter(run::Node& node);
  Taken take_locked(bool whole);
  bool wants(Which which, engine::QueueId caller) const;
  bool meets_unpushed(const run::Node& node) const;
  bool may_wait_for_more(const run::Node& node) const;
  bool is_to_be_held() const;
  bool completes_a_step() const;
  bool is_left_to_launcher(engine::QueueId caller) const;
  void note_held(uint64_t newest);

  const engine::Engine& engine_;
  std::atomic<size_t> full_{256};
  std::atomic<bool> fuses_{true};
  std::atomic<bool> watched_{false};

  mutable std::mutex mutex_;  // guards the rest; what is atomic is written under it
  Batch nodes_;
  engine::QueueId queue_ = engine::QueueId::cpu;  // that of all nodes; cpu if they differ
  bool has_async_ = false;
  bool may_wait_ = false;       // its async nodes can all be fused, or are for a reader
  bool is_held_ = false;        // and it is not full
  bool rest_to_watch_ = false;  // a held rest was left, which somebody may have to watch
  LoopCuts cuts_;
  uint64_t last_number_ = 0;
  std::atomic<uint64_t> recorded_{0};
  std::atomic<uint64_t> held_up_to_{0};
  std::atomic<size_t> size_{0};
  std::atomic<bool> in_transit_{false};
};

}  // namespace lazyeng::record
