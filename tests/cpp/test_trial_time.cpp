// tests/cpp/test_trial_time.cpp: how much time trials may take (run/cores/trial_time.h).
#include "csrc/run/cores/trial_time.h"
#include "tests/cpp/check.h"

namespace lazyeng::test {
namespace {

using run::TrialTime;
using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr TrialTime::Clock::time_point kBegin{hours(5)};

void a_tenth_of_a_second_at_once() {
  TrialTime time(kBegin);
  check(time.is_left(kBegin), "nothing was taken");
  time.take(milliseconds(99));
  check(time.is_left(kBegin), "some is left");
  time.take(milliseconds(1));
  check(!time.is_left(kBegin), "all was taken");
}

void then_a_fortieth_of_the_time_that_goes_by() {
  TrialTime time(kBegin);
  time.take(milliseconds(125));
  check(!time.is_left(kBegin + seconds(1)), "a second gives 25 ms");
  check(time.is_left(kBegin + seconds(1) + milliseconds(40)), "and a little more one more");
  int trials = 0;
  TrialTime::Clock::time_point now = kBegin;
  for (; now < kBegin + seconds(41); now += milliseconds(1))
    if (time.is_left(now)) {
      time.take(milliseconds(5));
      ++trials;
    }
  check(trials >= 199 && trials <= 201, "41 seconds give 1,025 ms, of which 25 were taken");
}

}  // namespace
}  // namespace lazyeng::test

int main(int argc, char** argv) {
  using namespace lazyeng::test;
  return run_tests(
      argc, argv,
      {{"a tenth of a second at once", a_tenth_of_a_second_at_once},
       {"then a fortieth of the time that goes by", then_a_fortieth_of_the_time_that_goes_by}});
}
