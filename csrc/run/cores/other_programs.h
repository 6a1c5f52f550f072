// csrc/run/cores/other_programs.h: how many cores other programs keep busy.
#pragma once

#include <sched.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>

namespace lazyeng::run {

/// Nanoseconds in which the cores of `mask` were not idle, by the text of /proc/stat: those of all
/// programs, this one's too. Time that a hypervisor took is nobody's.
uint64_t busy_nanoseconds(std::string_view proc_stat, const cpu_set_t& mask, long ticks_per_second);

/// One thread at a time.
class OtherPrograms {
 public:
  using Clock = std::chrono::steady_clock;

  /// This process is at work: says so every now and then. What others did while it paused was
  /// not in its way (two programs may take turns), and is not counted.
  void is_at_work(Clock::time_point now);

  /// How many of the cores that this process may use other programs have kept busy of late; nothing
  /// until it has been asked for a while, or where the kernel does not say.
  std::optional<double> cores(Clock::time_point now);

 private:
  /// Of all programs, and of this process.
  struct Sample {
    Clock::time_point when = Clock::time_point::min();
    uint64_t busy = 0;
    uint64_t own = 0;
  };
  static std::optional<Sample> sample(Clock::time_point now);

  std::optional<Sample> before_;
  Clock::time_point at_work_ = Clock::time_point::min();
};

}  // namespace lazyeng::run
