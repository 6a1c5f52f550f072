// csrc/record/process/gate.h: counts the threads inside the recorder, so that a fork finds none
// there.
//
// A child of fork() has one thread, the forking one. A lock that another thread held at that moment
// stays locked in the child for ever, and what the lock guards may be half changed. So the forking
// thread closes the gate, waits until every other thread is outside, and then forks.
//
// Who needs the gate: whoever may take a lock of csrc/record, csrc/run or csrc/engine, or wait for
// the engine, while it does not hold the GIL. Whoever holds the GIL from before its first lock
// until after its last one needs none, because the forking thread holds the GIL when it forks.
// (Locks that destructors of values take, wherever these run: fork.cpp.)
//
// Waits count as inside: the forking thread lets the engine finish everything anyway. A thread that
// finds the gate closed waits outside, without the GIL. Engine threads pass it: the fork waits for
// their ops, and then for the threads themselves.
//
// Why nobody slips in. An entering thread writes its slot, then reads the state; the closing thread
// writes the state, then reads the slots. If both reads came before the other's write, a thread
// would be inside a closed gate (the store-buffer case of Dekker), so a full barrier must stand
// between write and read on both sides. Entering happens for every op, closing hardly ever: so the
// closing thread pays for both, by membarrier(2), which makes every running thread of the process
// execute a full barrier before it returns. Take the point of that barrier in an entering thread.
// If the write of the slot stands before it in program order, the closing thread, which reads
// after membarrier, sees it. If not, then the read of the state stands behind it too, and sees the
// closed gate, which was written before membarrier. The compiler must keep write and read in order,
// and nothing else. Without membarrier both sides use sequentially consistent operations.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace lazyeng::record {

class Gate {
  /// One thread's mark. Slots are used again and never freed.
  struct Slot {
    std::atomic<uint32_t> depth{0};  ///< Inside scopes; written by its thread only
    std::atomic<bool> taken{true};
    bool exempt = false;  ///< of its thread only
    Slot* next = nullptr;
  };

 public:
  /// Marks the calling thread as inside, for a scope; nests. The outermost one waits while the gate
  /// is closed, without the GIL. Throws c10::Error in a process whose gate is lost.
  class Inside {
   public:
    Inside() : slot_(own_ ? *own_ : make_slot()) {
      const uint32_t depth = slot_.depth.load(std::memory_order_relaxed);
      enter(slot_, depth + 1);
      if (state_.load(std::memory_order_seq_cst) != State::open) wait_outside(slot_, depth);
    }
    // release: whoever sees us outside sees all that we did inside.
    ~Inside() {
      slot_.depth.store(slot_.depth.load(std::memory_order_relaxed) - 1, std::memory_order_release);
    }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    Slot& slot_;
  };

  /// Whether the calling thread is inside. Engine threads always are: they run an op.
  static bool is_inside() noexcept;
  /// A hint: false sends a caller that has the GIL to where the gate is asked properly.
  static bool is_open() noexcept { return state_.load(std::memory_order_relaxed) == State::open; }
  /// Lets the calling thread, one of the engine's, through a closed gate from now on.
  static void exempt_this_thread();

  /// Closes the gate and waits until every other thread is outside, but not longer than `patience`:
  /// then it is open again, and the answer false. One thread closes at a time, others wait for the
  /// gate to open; the closing thread itself may pass. Without the GIL; not from inside.
  static bool close(std::chrono::milliseconds patience);
  /// Only for the thread that has closed it.
  static void open() noexcept;
  static bool is_closed_by_us() noexcept { return closed_by_us_; }

  /// To be called in the child of a fork, before anything else. If the forking thread had not
  /// closed the gate, because the fork happened inside an op, or not through Python, then locks and
  /// engine are in an unknown state: the gate is lost, and every attempt to enter it raises.
  static void after_fork_in_child() noexcept;
  static bool is_lost() noexcept { return state_.load(std::memory_order_relaxed) == State::lost; }

 private:
  enum class State : int { open, closed, lost };

  static void enter(Slot& slot, uint32_t depth) noexcept {
    if (has_membarrier_) {
      slot.depth.store(depth, std::memory_order_relaxed);
      std::atomic_signal_fence(std::memory_order_seq_cst);  // binds the compiler only
    } else {
      slot.depth.exchange(depth, std::memory_order_seq_cst);
    }
  }

  static Slot& make_slot();
  static void wait_outside(Slot& slot, uint32_t outer_scopes);
  static void wait_until_open();
  static bool others_are_outside() noexcept;
  static bool membarrier() noexcept;

  static std::atomic<State> state_;
  static std::atomic<Slot*> slots_;  // grows at its head only
  static const bool has_membarrier_;
  static thread_local constinit Slot* own_;
  static thread_local constinit bool closed_by_us_;
};

}  // namespace lazyeng::record
