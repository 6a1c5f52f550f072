// tests/cpp/test_crowding.cpp: when helpers that stand in line shall sleep (run/crowding.h).
#include "csrc/run/crowding.h"
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
  int64_t look(const Crowding::Times& times) {
    const Clock::time_point until = crowding.look(now, times);
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

}  // namespace
}  // namespace lazyeng::test

int main(int argc, char** argv) {
  using namespace lazyeng::test;
  return run_tests(
      argc, argv,
      {{"looks now and then", looks_now_and_then},
       {"helpers spin while they find cores", helpers_spin_while_they_find_cores},
       {"a moment in line says nothing", a_moment_in_line_says_nothing},
       {"in line they sleep for longer and longer", in_line_they_sleep_for_longer_and_longer},
       {"what they have asleep changes nothing", what_they_have_asleep_changes_nothing},
       {"a free machine is forgiven", a_free_machine_is_forgiven}});
}
