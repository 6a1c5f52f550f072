// tests/cpp/test_spare_cores.cpp: when large ops leave a core to the program
// (run/cores/spare_cores.h).
#include "csrc/run/cores/spare_cores.h"
#include "tests/cpp/check.h"

namespace lazyeng::test {
namespace {

using run::SpareCores;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// Microseconds of a core that the program has had whenever it is asked for.
std::optional<double> program_cpu;

/// A program on a machine where time passes.
struct Machine {
  SpareCores cores{[] { return program_cpu; }};
  SpareCores::Clock::time_point now{std::chrono::hours(5)};
  int count = 2;

  /// Steps of five milliseconds for so long: the program waits for some of it, and large ops run
  /// that take so long on one core.
  void runs(milliseconds time, milliseconds waited, milliseconds large,
            milliseconds on_all = milliseconds(0)) {
    for (const auto end = now + time; now < end;) {
      cores.program_waits(true, now);
      now += waited;
      cores.program_waits(false, now);
      now += milliseconds(5) - waited;
      cores.ran_large(std::chrono::duration<double, std::micro>(large).count(), count, now);
      cores.ran_on_all(std::chrono::duration<double, std::micro>(on_all).count(), count, now);
    }
  }
};

void who_waits_leaves_its_core() {
  Machine machine;
  check(!machine.cores.for_large_ops(), "until large ops are known");
  machine.runs(seconds(1), milliseconds(4), milliseconds(7));
  check(machine.cores.for_large_ops(), "the program needs a fifth");
}

void who_records_keeps_it() {
  Machine machine;
  machine.runs(seconds(1), milliseconds(2), milliseconds(3));
  check(!machine.cores.for_large_ops(), "the program takes as long as the large ops");
}

void between_the_bounds_it_stays() {
  Machine machine;  // (the program takes two milliseconds)
  machine.runs(seconds(1), milliseconds(3), milliseconds(14));
  check(machine.cores.for_large_ops(), "7 times that pays");
  machine.runs(seconds(1), milliseconds(3), milliseconds(10));
  check(machine.cores.for_large_ops(), "5 times still does");
  machine.runs(seconds(1), milliseconds(3), milliseconds(6));
  check(!machine.cores.for_large_ops(), "3 times does not");
  machine.runs(seconds(1), milliseconds(3), milliseconds(10));
  check(!machine.cores.for_large_ops(), "5 times does not yet");
}

void many_cores_have_one_to_spare() {
  Machine machine;
  machine.count = 16;
  machine.runs(seconds(1), milliseconds(1), milliseconds(4));
  check(machine.cores.for_large_ops(), "the program's is one of sixteen");
}

void a_long_wait_counts_before_it_ends() {
  Machine machine;
  machine.runs(seconds(1), milliseconds(0), milliseconds(1));
  check(!machine.cores.for_large_ops(), "it records all the time");
  machine.cores.program_waits(true, machine.now);
  check(machine.cores.program_waits(), "one waits");
  for (int i = 0; i < 200; ++i) {
    machine.now += milliseconds(5);
    machine.cores.ran_large(5000, machine.count, machine.now);
  }
  check(machine.cores.for_large_ops(), "it has waited for a second");
}

void what_was_long_ago_is_forgotten() {
  Machine machine;
  machine.runs(seconds(1), milliseconds(5), milliseconds(5));
  machine.now += seconds(60);  // eager code
  machine.runs(seconds(1), milliseconds(0), milliseconds(1));
  check(!machine.cores.for_large_ops(), "a second is enough");
}

void without_large_ops_there_are_none() {
  Machine machine;
  machine.runs(seconds(1), milliseconds(5), milliseconds(5));
  const auto records_for = [&](milliseconds time) {
    for (const auto end = machine.now + time; machine.now < end; machine.now += milliseconds(20))
      machine.cores.look(machine.now);
  };
  records_for(milliseconds(100));
  check(machine.cores.for_large_ops(), "for a moment");
  machine.now += seconds(60);
  records_for(milliseconds(60));
  check(machine.cores.for_large_ops(), "a pause");
  records_for(milliseconds(300));
  check(!machine.cores.for_large_ops(), "no more");
}

void helpers_spin_for_what_has_all_cores_anyway() {
  Machine machine;  // (the program takes two milliseconds)
  machine.runs(seconds(1), milliseconds(3), milliseconds(5));
  check(!machine.cores.for_helpers(), "large ops are on one core");
  machine.runs(seconds(1), milliseconds(3), milliseconds(0), milliseconds(5));
  check(machine.cores.for_helpers(), "ops have all cores in any case");
  check(!machine.cores.for_large_ops(), "others do not");
  machine.runs(seconds(1), milliseconds(3), milliseconds(5), milliseconds(1));
  check(!machine.cores.for_helpers(), "few have");
  machine.runs(seconds(1), milliseconds(4), milliseconds(9));
  check(machine.cores.for_helpers(), "large ops have all cores");
}

/// (By the last tenth of a second alone, each burst would take a core away for as long again.)
void a_loop_that_records_in_bursts_leaves_its_core() {
  Machine machine;
  bool always = true;
  for (int step = 0; step < 20; ++step) {
    machine.runs(milliseconds(100), milliseconds(0), milliseconds(5));
    always &= step < 3 || machine.cores.for_large_ops();
    machine.runs(milliseconds(900), milliseconds(5), milliseconds(10));
    always &= machine.cores.for_large_ops();
  }
  check(always, "it records for a tenth of the time");
}

void who_sleeps_needs_no_core() {
  Machine machine;
  program_cpu = 500;
  machine.runs(seconds(1), milliseconds(1), milliseconds(3));
  check(machine.cores.for_large_ops(), "it does not wait, but sleeps");
  program_cpu = 9000;
  machine.runs(seconds(1), milliseconds(1), milliseconds(3));
  check(!machine.cores.for_large_ops(), "it computes");
  program_cpu = {};
}

}  // namespace
}  // namespace lazyeng::test

int main(int argc, char** argv) {
  using namespace lazyeng::test;
  return run_tests(
      argc, argv,
      {{"who waits leaves its core", who_waits_leaves_its_core},
       {"who records keeps it", who_records_keeps_it},
       {"between the bounds it stays", between_the_bounds_it_stays},
       {"many cores have one to spare", many_cores_have_one_to_spare},
       {"a long wait counts before it ends", a_long_wait_counts_before_it_ends},
       {"what was long ago is forgotten", what_was_long_ago_is_forgotten},
       {"helpers spin for what has all cores anyway", helpers_spin_for_what_has_all_cores_anyway},
       {"a loop that records in bursts leaves its core",
        a_loop_that_records_in_bursts_leaves_its_core},
       {"who sleeps needs no core", who_sleeps_needs_no_core},
       {"without large ops there are none", without_large_ops_there_are_none}});
}
