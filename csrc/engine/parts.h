// csrc/engine/parts.h: what an op does on several threads at once, part by part.
//
// The thread that runs the op offers its parts to the pool (WorkerPool::offer) and takes them one
// after another itself. Threads that have nothing else to do, idle workers and waiting guests, take
// some as well. No thread is waited for before it has taken a part: if none is free, the op loses
// nothing, and a thread that becomes free in the middle of it still helps.
//
// Each part is called once: next_ gives each number out once. The owner's `part` outlives all
// calls: finish() returns when as many have ended as were to be called, and what takes a number
// afterwards finds none left, so it calls nothing. What the parts have written is seen by whoever
// returns from finish(): unfinished_ is decremented with release, and read with acquire.
#pragma once

#include <atomic>
#include <functional>

#include "csrc/engine/wait.h"

namespace lazyeng::engine {

class Parts final : public RefCounted {
 public:
  using Part = std::function<void(unsigned)>;

  /// `part` must not throw, nor wait for anything, and lives until finish() has returned.
  Parts(unsigned count, const Part& part) : part_(part), count_(count), unfinished_(count) {}

  /// Whether a part is left to take. A hint if true; false is final.
  bool open() const noexcept { return next_.load(std::memory_order_relaxed) < count_; }

  /// Calls the parts that no thread has taken yet. False if there were none.
  bool help() noexcept;

  /// By the owner, once: does the same, and returns when all parts have been done.
  void finish() noexcept;

 private:
  const Part& part_;
  const unsigned count_;
  std::atomic<unsigned> next_{0};
  std::atomic<unsigned> unfinished_;
  EventCount all_done_;
};

}  // namespace lazyeng::engine
