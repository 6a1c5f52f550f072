// csrc/record/holder.cpp: looking every now and then whether recording has paused.
#include "csrc/record/holder.h"

#include <pthread.h>

#include <chrono>

#include "csrc/record/gate.h"

namespace lazyeng::record {
namespace {

/// A window that has not grown for so long is pushed. Much longer than recording an op takes, much
/// shorter than what holding a chain of large ops saves.
constexpr auto kPause = std::chrono::microseconds(50);
/// Rounds with nothing to do before the thread sleeps until it is woken, which costs the recording
/// thread a system call.
constexpr int kIdleRounds = 50;

}  // namespace

void Holder::start() {
  if (runs_.exchange(true)) return;
  awake_.store(true);
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "lazyeng-holder");
    Gate::exempt_this_thread();
    work();
  });
}

void Holder::stop() {
  if (!runs_.exchange(false)) return;
  wake();
  thread_.join();
}

void Holder::wake() noexcept {
  // seq_cst, as the thread's store in sleep(): either it sees the node that we have put into the
  // window, or we see it asleep.
  if (awake_.load(std::memory_order_seq_cst)) return;
  if (!awake_.exchange(true, std::memory_order_seq_cst)) awake_.notify_one();
}

void Holder::sleep() {
  awake_.store(false, std::memory_order_seq_cst);
  if (newest_() == 0 && runs()) awake_.wait(false, std::memory_order_seq_cst);
  awake_.store(true, std::memory_order_seq_cst);
}

void Holder::work() {
  uint64_t seen = 0;
  for (int idle = 0; runs();) {
    const uint64_t newest = newest_();
    if (newest == 0 && ++idle > kIdleRounds) {
      sleep();
      idle = 0;
      continue;
    }
    if (newest != 0) idle = 0;
    if (newest != 0 && newest == seen) push_();
    seen = newest;
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace lazyeng::record
