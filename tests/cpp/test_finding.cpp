// tests/cpp/test_finding.cpp: for what findings of trials hold (run/cores/finding.h).
#include "csrc/run/cores/finding.h"
#include "tests/cpp/check.h"

namespace lazyeng::test {
namespace {

using run::Finding;

void for_its_number_of_threads() {
  Finding finding;
  check(!finding.of(2) && !finding.of(1) && !finding.holds(), "nothing is known");
  finding.note(2, true);
  check(finding.of(2) == true && finding.holds(), "the same");
  check(!finding.of(4), "of four threads nothing is known");
  finding.note(4, false);
  check(finding.of(4) == false && !finding.holds(), "not the same");
  check(!finding.of(2), "the last one counts");
}

void until_other_kernels_are_chosen() {
  Finding finding;
  finding.note(2, true);
  run::kernel_settings_changed(true);
  check(!finding.of(2) && !finding.holds(), "of other kernels nothing is known");
  finding.note(2, false);
  check(finding.of(2) == false, "tried anew");
}

}  // namespace
}  // namespace lazyeng::test

int main(int argc, char** argv) {
  using namespace lazyeng::test;
  return run_tests(
      argc, argv,
      {{"a finding holds for its number of threads", for_its_number_of_threads},
       {"a finding holds until other kernels are chosen", until_other_kernels_are_chosen}});
}
