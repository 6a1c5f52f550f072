// csrc/run/caller/only_thread.cpp: who asked last, and when that was another.
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

bool is_only_thread() {
  static thread_local const char self = 0;
  const Clock::time_point now = Clock::now();
  const char* const last = last_thread.exchange(&self, std::memory_order_relaxed);
  if (last && last != &self) last_change.store(now, std::memory_order_relaxed);
  const Clock::time_point change = last_change.load(std::memory_order_relaxed);
  return change == Clock::time_point::min() || now - change >= kLately;
}

}  // namespace lazyeng::run
