// csrc/run/caller/only_thread.cpp: who had a long op last, and when that was another thread.
#include "csrc/run/caller/only_thread.h"

#include <atomic>
#include <chrono>

namespace lazyeng::run {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLately{100};

std::atomic<const char*> last_thread{nullptr};
std::atomic<Clock::time_point> last_note{Clock::time_point::min()};
/// The last one of another thread than that of the last note.
std::atomic<Clock::time_point> last_of_another{Clock::time_point::min()};

}  // namespace

void note_long_op() {
  static thread_local const char self = 0;
  const Clock::time_point before = last_note.exchange(Clock::now(), std::memory_order_relaxed);
  if (last_thread.exchange(&self, std::memory_order_relaxed) != &self)
    last_of_another.store(before, std::memory_order_relaxed);
}

bool is_only_thread() {
  note_long_op();
  const Clock::time_point other = last_of_another.load(std::memory_order_relaxed);
  return other == Clock::time_point::min() || Clock::now() - other >= kLately;
}

}  // namespace lazyeng::run
