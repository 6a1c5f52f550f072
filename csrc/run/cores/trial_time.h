// csrc/run/cores/trial_time.h: how much time the trials of ops may take (width_trial.h).
//
// A trial pays where its op comes back many times. In a program whose shapes are seldom the same
// (sentences of all lengths) there are thousands of ops that come back a few times each: so trials
// may take a tenth of a second, and from then on a small share of the time that goes by. An op that
// finds nothing left is asked again when it comes back.
#pragma once

#include <atomic>
#include <chrono>

namespace lazyeng::run {

class TrialTime {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr Clock::duration kAtOnce = std::chrono::milliseconds(100);
  static constexpr int kShare = 40;  ///< of the time that goes by: one part in so many

  /// `begin`: when the time begins to go by.
  explicit TrialTime(Clock::time_point begin) : begin_(begin) {}

  bool is_left(Clock::time_point now) const {
    return Clock::duration(taken_.load(std::memory_order_relaxed)) <
           kAtOnce + (now - begin_) / kShare;
  }
  void take(Clock::duration time) { taken_.fetch_add(time.count(), std::memory_order_relaxed); }

 private:
  const Clock::time_point begin_;
  std::atomic<Clock::rep> taken_{0};
};

}  // namespace lazyeng::run
