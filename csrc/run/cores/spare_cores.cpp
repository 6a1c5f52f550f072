// csrc/run/cores/spare_cores.cpp: sums of the last ten milliseconds.
#include "csrc/run/cores/spare_cores.h"

#include <algorithm>
#include <utility>

#include "csrc/run/cores/program_time.h"

namespace lazyeng::run {

void SpareCores::program_waits(bool waits, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  const int before = waiting_.fetch_add(waits ? 1 : -1, std::memory_order_relaxed);
  if (waits && before == 0) waits_since_ = now;
  if (!waits && before == 1) waited_ += now - std::max(waits_since_, period_);
}

void SpareCores::ran_large(double microseconds, int cores, Clock::time_point now) {
  ran(microseconds, cores, now, false);
}

void SpareCores::ran_on_all(double microseconds, int cores, Clock::time_point now) {
  ran(microseconds, cores, now, true);
}

void SpareCores::ran(double microseconds, int cores, Clock::time_point now, bool in_any_case) {
  if (cores < 2) return;  // whoever asked for one thread has nothing to share
  const std::lock_guard lock(mutex_);
  for (Sums* sums : {&recent_, &lasting_}) {
    sums->large += microseconds;
    if (in_any_case) sums->on_all += microseconds;
  }
  without_large_ = {};
  if (now - period_ < kPeriod) return;
  // (A program that had nothing large to do for long is measured from now on.)
  if (now - period_ < kForgets) decide(cores, now);
  period_ = now;
  waited_ = {};
}

void SpareCores::look(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  const Clock::duration since = now - std::exchange(looked_, now);
  if (since < kPause) without_large_ += since;
  if (without_large_ <= kForgets) return;
  for_large_ops_.store(false, std::memory_order_relaxed);
  for_helpers_.store(false, std::memory_order_relaxed);
}

void SpareCores::decide(int cores, Clock::time_point now) {
  Clock::duration waited = waited_;
  if (program_waits()) waited += now - std::max(waits_since_, period_);
  const double awake = std::chrono::duration<double, std::micro>(now - period_ - waited).count();
  const double own = std::min(awake, program_cpu_().value_or(awake));
  recent_.own += own;
  lasting_.own += own;
  const double times = for_large_ops() ? kStillPays : kPays;
  const double helpers = cores - 1;
  for_large_ops_.store(
      either([&](const Sums& sums) { return sums.large * helpers > times * sums.own; }),
      std::memory_order_relaxed);
  for_helpers_.store(
      either([&](const Sums& sums) { return sums.on_all * helpers > kHelpersPay * sums.own; }),
      std::memory_order_relaxed);
  recent_.fade(kRemembers);
  lasting_.fade(kRemembersLong);
}

SpareCores& spare_cores() {
  static auto* const instance = new SpareCores([] { return program_time().microseconds(); });
  return *instance;
}

}  // namespace lazyeng::run
