// csrc/run/cores/crowding.h: whether threads of a team stand in line behind other programs.
//
// A helper that spins on a core that others want too takes the time slice of the very thread that
// it waits for, and each kernel lasts some slices: a step of 6 ms took 1.3 s beside two busy
// processes. Helpers that sleep pass the core on at once.
//
// The program's own threads make a line too: on two cores the recording thread is the third beside
// a kernel. Sleeping for that makes an LSTM three times as slow: other programs must be busy, too.
//
// Sleeping helpers cost wake-ups, so they spin again after a while, to see whether they can: a
// while that doubles each time that they cannot.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace lazyeng::run {

/// Of the threads that run large kernels. One thread at a time.
class Crowding {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr std::chrono::milliseconds kLookEvery{10};

  /// What the threads of a team have had since they were looked at last, in nanoseconds.
  struct Times {
    uint64_t on_core = 0;
    uint64_t in_line = 0;
  };

  /// (Not at the first large kernel: a program may have one only.)
  bool is_due(Clock::time_point now) {
    if (due_ == Clock::time_point::min()) due_ = now + kLookEvery;
    return now >= due_;
  }

  /// Until when helpers had better sleep; a time in the past: they may spin. `others(now)` tells
  /// how many cores other programs keep busy, if it knows; it is asked only where there is a line.
  template <class Others>
  Clock::time_point look(Clock::time_point now, const Times& times, Others&& others) {
    if (now < until_) return until_;
    due_ = now + kLookEvery;
    if (!is_line(times) || others(now).value_or(0) < kBusy) {
      if (now > until_ + kForgets * while_) while_ = kShort;
      return until_;
    }
    while_ = std::min<Clock::duration>(while_ * 2, kLong);
    until_ = now + while_;
    due_ = until_ + kLookEvery;  // (how they sleep says nothing)
    return until_;
  }

 private:
  /// In line for a third of the time that is spent on a core, or more.
  static bool is_line(const Times& times) {
    return times.on_core + times.in_line >= kEnough && times.in_line * 3 >= times.on_core;
  }

  static constexpr uint64_t kEnough = 5'000'000;
  /// Cores. What a quiet machine does besides is less.
  static constexpr double kBusy = 0.3;
  static constexpr std::chrono::milliseconds kShort{150};
  static constexpr std::chrono::milliseconds kLong{4800};
  static constexpr int kForgets = 4;

  Clock::time_point due_ = Clock::time_point::min();
  Clock::time_point until_ = Clock::time_point::min();
  Clock::duration while_ = kShort;
};

}  // namespace lazyeng::run
