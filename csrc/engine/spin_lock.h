// csrc/engine/spin_lock.h: a lock of one byte, for short sections.
//
// A var's lock is taken twice per access of every op, almost never contended: releasing it with a
// plain store makes it cheaper than std::mutex (bench_engine), and a var 32 bytes smaller.
// A thread that meets a preempted holder gives its core away. No user code runs under it, its
// holder waits for nothing, and two of them are never held together. Most sections are a few
// instructions; the longest look through a list (csrc/run/plain/plain_values.cpp, of at most 512),
// or let a table grow, a dozen times in a process (csrc/record/metadata/plan_cache.cpp).
#pragma once

#include <atomic>
#include <thread>

#include "csrc/engine/pause.h"

namespace lazyeng::engine {

class SpinLock {
 public:
  void lock() noexcept {
    while (locked_.exchange(true, std::memory_order_acquire)) wait();
  }
  void unlock() noexcept { locked_.store(false, std::memory_order_release); }

 private:
  void wait() noexcept {
    for (int i = 0; locked_.load(std::memory_order_relaxed); ++i) {
      if (i < 64)
        pause();
      else
        std::this_thread::yield();
    }
  }

  std::atomic<bool> locked_{false};
};

}  // namespace lazyeng::engine
