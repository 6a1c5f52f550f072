// csrc/run/cores/program_time.cpp: the kernel's clocks of threads.
#include "csrc/run/cores/program_time.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

namespace lazyeng::run {
namespace {

/// Nothing for a thread that is no more.
std::optional<int64_t> read(clockid_t clock) {
  timespec time{};
  if (clock_gettime(clock, &time) != 0) return std::nullopt;
  return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
}

}  // namespace

void ProgramTime::note_this_thread() {
  static thread_local bool noted = false;
  if (noted) return;
  noted = true;
  clockid_t clock;
  if (pthread_getcpuclockid(pthread_self(), &clock) != 0) return;
  const std::lock_guard lock(mutex_);
  // (A thread that has ended may have had the same number.)
  std::erase_if(threads_, [&](const Thread& thread) { return thread.clock == clock; });
  threads_.push_back({clock, read(clock).value_or(0)});
}

std::optional<double> ProgramTime::microseconds() {
  const std::lock_guard lock(mutex_);
  if (threads_.empty()) return std::nullopt;
  int64_t sum = 0;
  std::erase_if(threads_, [&](Thread& thread) {
    const std::optional<int64_t> now = read(thread.clock);
    if (now) sum += *now - std::exchange(thread.nanoseconds, *now);
    return !now;
  });
  return static_cast<double>(sum) * 1e-3;
}

ProgramTime& program_time() {
  static auto* const instance = new ProgramTime;
  return *instance;
}

}  // namespace lazyeng::run
