// csrc/run/cores/spare_cores.h: whether large ops have all cores, or leave one to the program.
//
// On c cores, in the same while: R is what the program takes itself (it records, it computes), W
// what the large ops take on one core, S what is too small to be shared. With large ops on one core
// the worker is done after S + W; on all cores, which the program wants one of, after
// S + (W + R) / c at best. So all cores pay if W * (c - 1) > R. At best: a kernel whose helper
// stands in line behind the program waits for it, and between kernels helpers of OpenMP spin, on a
// core that the program or the worker lacks (two of three milliseconds of a helper in a step of
// SAC, where large ops on all cores took 1.3 times as long as on one). So they must pay by far: the
// more so as a program that waits helps with large ops itself where they are on one core (parts.h),
// which needs no helper, and leaves none behind that spins.
//
// Both are measured, ten milliseconds at a time. R is the time in which the program does not wait,
// or what its threads have had of the cores, if that is less: a thread that sleeps needs none. A
// program that has recorded for a while without large ops leaves no cores to large ops.
//
// All cores pay if they do by the last tenth of a second or by the last second. A loop that never
// reads records hundreds of steps within a few periods, waits for room, and records on: by the
// second it leaves a core to spare, while by the tenth it would take turns, and each change wakes
// helpers or puts them to sleep. And what has just begun to wait, or has had its first steps, in
// which much is planned and tried, need not wait for a second to be over.
//
// Some ops have all cores in any case: those of which it is not known that one gives their bits.
// For them the choice is only whether OpenMP's helpers sleep in between, at a wake-up for each op,
// or spin. They may spin where such ops take more than the program: with shapes that are never the
// same a step took half as long, while that of an MLP, all on one core, took 1.5 times as long.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>

namespace lazyeng::run {

/// Any thread. Time and cores come from outside, for the tests.
class SpareCores {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr std::chrono::milliseconds kPeriod{10};
  /// What the sums keep after each: those of some steps of most programs, and of many.
  static constexpr double kRemembers = 0.9, kRemembersLong = 0.99;
  /// W * (c - 1) in multiples of R: from the first large ops take one core no longer, below the
  /// second all cores no longer.
  static constexpr double kPays = 6, kStillPays = 4;
  /// For ops that have all cores in any case, in the same way.
  static constexpr double kHelpersPay = 1.0;
  /// Without any in so long a time of recording, large ops are forgotten.
  static constexpr std::chrono::milliseconds kForgets{200};
  /// A time without calls of look() that is longer counts as a pause, not as recording.
  static constexpr std::chrono::milliseconds kPause{50};

  /// What tells the microseconds that the program's threads have had of the cores since it was
  /// asked last, if it knows.
  using ProgramCpu = std::optional<double> (*)();
  explicit SpareCores(ProgramCpu program_cpu) : program_cpu_(program_cpu) {}

  /// A thread of the program begins, or ends, to wait for the engine.
  void program_waits(bool waits, Clock::time_point now);
  /// Whether one waits at this moment.
  bool program_waits() const { return waiting_.load(std::memory_order_relaxed) > 0; }

  /// A large op has run: what it takes on one core. Every now and then it decides anew.
  void ran_large(double microseconds, int cores, Clock::time_point now);
  /// The same of an op that had all cores, and would have had them in any case.
  void ran_on_all(double microseconds, int cores, Clock::time_point now);

  /// Every now and then while the program records, also if there are none.
  void look(Clock::time_point now);

  /// Whether large ops shall run on all cores.
  bool for_large_ops() const { return for_large_ops_.load(std::memory_order_relaxed); }
  /// Whether helpers of a program that waits shall spin between ops.
  bool for_helpers() const {
    return for_large_ops() || for_helpers_.load(std::memory_order_relaxed);
  }

 private:
  /// W, of it what has all cores in any case, and R, in microseconds; earlier periods count less.
  struct Sums {
    double large = 0, on_all = 0, own = 0;
    void fade(double kept) { large *= kept, on_all *= kept, own *= kept; }
  };

  void ran(double microseconds, int cores, Clock::time_point now, bool in_any_case);
  void decide(int cores, Clock::time_point now);
  template <class Condition>
  bool either(Condition pays) const {
    return pays(recent_) || pays(lasting_);
  }

  const ProgramCpu program_cpu_;
  std::atomic<bool> for_large_ops_{false}, for_helpers_{false};
  std::atomic<int> waiting_{0};
  std::mutex mutex_;
  Sums recent_, lasting_;
  Clock::time_point period_{};       // its begin
  Clock::time_point waits_since_{};  // somebody does, since then or the period's begin
  Clock::duration waited_{};         // in this period, before that
  Clock::time_point looked_{};
  Clock::duration without_large_{};  // so long it has recorded since a large op
};

SpareCores& spare_cores();

/// In this scope the calling thread of the program does what a worker would do, as if it waited for
/// that.
class ComputesForEngine {
 public:
  ComputesForEngine() { spare_cores().program_waits(true, SpareCores::Clock::now()); }
  ~ComputesForEngine() { spare_cores().program_waits(false, SpareCores::Clock::now()); }
  ComputesForEngine(const ComputesForEngine&) = delete;
  ComputesForEngine& operator=(const ComputesForEngine&) = delete;
};

}  // namespace lazyeng::run
