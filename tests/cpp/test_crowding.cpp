// tests/cpp/test_crowding.cpp: when helpers that stand in line shall sleep (run/cores/crowding.h),
// and how many cores others keep busy (run/cores/other_programs.h).
#include <time.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "csrc/run/cores/crowding.h"
#include "csrc/run/cores/other_programs.h"
#include "tests/cpp/check.h"

namespace lazyeng::test {
namespace {

using run::Crowding;
using Clock = Crowding::Clock;
using std::chrono::milliseconds;

constexpr Crowding::Times kFree{10'000'000, 100'000};
constexpr Crowding::Times kInLine{10'000'000, 9'000'000};

/// A machine on which time passes.
struct Machine {
  Clock::time_point now{std::chrono::hours(5)};
  Crowding crowding;

  /// For how many milliseconds helpers shall sleep after a look at these times.
  int64_t look(const Crowding::Times& times, std::optional<double> others = 1.0) {
    const Clock::time_point until =
        crowding.look(now, times, [&](Clock::time_point) { return others; });
    return until < now ? 0 : std::chrono::duration_cast<milliseconds>(until - now).count();
  }
};

void looks_now_and_then() {
  Machine machine;
  check(!machine.crowding.is_due(machine.now), "none at the first kernel");
  machine.now += Crowding::kLookEvery;
  check(machine.crowding.is_due(machine.now), "the first look is due");
  machine.look(kFree);
  check(!machine.crowding.is_due(machine.now), "none at once after it");
  machine.now += Crowding::kLookEvery;
  check(machine.crowding.is_due(machine.now), "one after a while");
}

void helpers_spin_while_they_find_cores() {
  Machine machine;
  for (int i = 0; i < 100; ++i, machine.now += Crowding::kLookEvery)
    same(machine.look(kFree), 0, "sleep");
}

void a_moment_in_line_says_nothing() {
  Machine machine;
  same(machine.look({1'000'000, 2'000'000}), 0, "sleep");
}

void a_line_of_its_own_threads_is_none() {
  Machine machine;
  same(machine.look(kInLine, 0.05), 0, "sleep, on a quiet machine");
  same(machine.look(kInLine, std::nullopt), 0, "sleep, where nobody knows");
  check(machine.look(kInLine, 1.0) > 0, "they sleep for others");
}

void in_line_they_sleep_for_longer_and_longer() {
  Machine machine;
  int64_t before = machine.look(kInLine);
  check(before > 0, "they sleep");
  for (int i = 0; i < 3; ++i) {
    machine.now += milliseconds(before) + Crowding::kLookEvery;
    const int64_t next = machine.look(kInLine);
    check(next > before, "longer");
    before = next;
  }
  for (int i = 0; i < 10; ++i) {
    machine.now += milliseconds(before) + Crowding::kLookEvery;
    before = machine.look(kInLine);
  }
  check(before < 10'000, "but not for ever");
}

void what_they_have_asleep_changes_nothing() {
  Machine machine;
  const int64_t asleep = machine.look(kInLine);
  machine.now += milliseconds(asleep / 2);
  same(machine.look(kInLine), asleep - asleep / 2, "the rest of it");
  check(!machine.crowding.is_due(machine.now + milliseconds(asleep / 2)), "no look before the end");
}

void a_free_machine_is_forgiven() {
  Machine machine;
  const int64_t first = machine.look(kInLine);
  machine.now += milliseconds(first) + Crowding::kLookEvery;
  const int64_t second = machine.look(kInLine);
  for (int i = 0; i < 500; ++i, machine.now += Crowding::kLookEvery) machine.look(kFree);
  const int64_t later = machine.look(kInLine);
  check(later < second, "as if for the first time");
}

// ---- other programs

constexpr const char* kProcStat =
    "cpu  1000 20 300 40000 50 6 7 80 900 10\n"
    "cpu0 100 2 30 4000 5 6 7 8 90 1\n"
    "cpu1 900 18 270 36000 45 0 0 72 810 9\n"
    "cpu12 1 0 0 5 0 0 0 0 0 0\n"
    "intr 12345 0 0\n";

void sums_what_the_cores_do() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  CPU_SET(0, &mask);
  constexpr uint64_t kTick = 10'000'000;
  same(run::busy_nanoseconds(kProcStat, mask, 100), 145 * kTick, "user, nice, system, irqs");
  CPU_SET(12, &mask);
  same(run::busy_nanoseconds(kProcStat, mask, 100), 146 * kTick, "two cores");
  same(run::busy_nanoseconds("", mask, 100), uint64_t{0}, "no text");
  same(run::busy_nanoseconds("cpu0 7", mask, 100), 7 * kTick, "no end");
}

double process_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// A thread on each core: counted as work of others, their time would show twice in the sum of ours
// and others', which is more than there are cores.
void own_work_is_not_that_of_others() {
  std::atomic<bool> over{false};
  const unsigned cores = std::thread::hardware_concurrency();
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < cores; ++i)
    threads.emplace_back([&] {
      while (!over) {
      }
    });
  run::OtherPrograms others;
  const Clock::time_point start = Clock::now();
  std::optional<double> first = others.cores(start), second = others.cores(start + milliseconds(1));
  double least = 2.0 * cores;  // (the kernel's ticks are coarse: one good look is enough)
  for (int i = 0; i < 20 && least > cores + 0.3; ++i) {
    const double before = process_seconds();
    const Clock::time_point from = Clock::now();
    others.cores(from);
    std::this_thread::sleep_for(milliseconds(220));
    const Clock::time_point now = Clock::now();
    const double own =
        (process_seconds() - before) / std::chrono::duration<double>(now - from).count();
    if (const std::optional<double> found = others.cores(now))
      least = std::min(least, *found + own);
  }
  over = true;
  check(!first, "nothing at first");
  check(!second, "nor at once");
  check(least <= cores + 0.3, "ours and others': " + std::to_string(least) + " cores");
}

void after_a_pause_nothing_is_known_of_others() {
  run::OtherPrograms others;
  Clock::time_point now = Clock::now();
  const auto pass = [&](milliseconds time) { now += time; };
  others.is_at_work(now);
  check(!others.cores(now), "nothing at first");
  for (int i = 0; i < 5; ++i) {
    pass(milliseconds(50));
    others.is_at_work(now);
  }
  check(others.cores(now).has_value(), "at work for 250 ms");
  pass(milliseconds(250));
  others.is_at_work(now);
  check(!others.cores(now), "after a pause");
}

}  // namespace
}  // namespace lazyeng::test

int main(int argc, char** argv) {
  using namespace lazyeng::test;
  return run_tests(
      argc, argv,
      {{"looks now and then", looks_now_and_then},
       {"helpers spin while they find cores", helpers_spin_while_they_find_cores},
       {"a moment in line says nothing", a_moment_in_line_says_nothing},
       {"a line of its own threads is none", a_line_of_its_own_threads_is_none},
       {"in line they sleep for longer and longer", in_line_they_sleep_for_longer_and_longer},
       {"what they have asleep changes nothing", what_they_have_asleep_changes_nothing},
       {"a free machine is forgiven", a_free_machine_is_forgiven},
       {"sums what the cores do", sums_what_the_cores_do},
       {"own work is not that of others", own_work_is_not_that_of_others},
       {"after a pause nothing is known of others", after_a_pause_nothing_is_known_of_others}});
}
