// csrc/run/caller/only_thread.cpp: who had a long op last, and when that was another thread.
#include "csrc/run/caller/only_thread.h"

#include <atomic>
#include <chrono>

namespace lazyeng::run {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLately{100};

std::atomic<const char*> last_thread{nullptr};
std::atomic<Clock::time_point> last_change{Clock::time_point::min()};

}  // namespace

void note_long_op() {
  static thread_local const char self = 0;
  if (last_thread.load(std::memory_order_relaxed) == &self) return;
  if (last_thread.exchange(&self, std::memory_order_relaxed))
    last_change.store(Clock::now(), std::memory_order_relaxed);
}

bool is_only_thread() {
  note_long_op();
  const Clock::time_point change = last_change.load(std::memory_order_relaxed);
  return change == Clock::time_point::min() || Clock::now() - change >= kLately;
}

}  // namespace lazyeng::run
