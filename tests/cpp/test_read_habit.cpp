// tests/cpp/test_read_habit.cpp: when recorded nodes are held for a read
// (run/caller/read_habit.h).
#include "csrc/run/caller/read_habit.h"
#include "tests/cpp/check.h"

namespace lazyeng::test {
namespace {

using run::ReadHabit;

/// Records so many nodes that are soon done; how many of them may be held.
int records(ReadHabit& habit, int count, bool fusable = false) {
  int held = 0;
  for (int i = 0; i < count; ++i) held += habit.records(/*soon_done=*/true, fusable);
  return held;
}

ReadHabit made_a_habit() {
  ReadHabit habit;
  for (int i = 0; i < 2; ++i) {
    same(records(habit, 3), 0, "held before there is a habit");
    habit.reads();
  }
  return habit;
}

void two_reads_make_a_habit() {
  ReadHabit habit = made_a_habit();
  for (int i = 0; i < 5; ++i) {
    same(records(habit, 3), 3, "held");
    habit.reads();
  }
}

void reads_of_what_is_there_make_none() {
  ReadHabit habit;
  records(habit, 1);
  for (int i = 0; i < 5; ++i) habit.reads();
  same(records(habit, 1), 0, "held after one read of something new");
}

void no_more_than_a_little_is_held() {
  ReadHabit habit = made_a_habit();
  same(records(habit, 31), 31, "held of a few");
  check(habit.expects_read(), "of 32");
  same(records(habit, 69), 1, "held of a hundred");
  check(!habit.expects_read(), "of more than 32");
  habit.reads();
  same(records(habit, 1), 0, "held after a long way to the read");
}

void a_habit_ends_where_much_is_recorded() {
  ReadHabit habit = made_a_habit();
  check(habit.has_it(), "after two reads");
  records(habit, 32);
  check(habit.has_it(), "of a few");
  records(habit, 1);
  check(!habit.has_it(), "of more than 32");
  habit = made_a_habit();
  habit.records(/*soon_done=*/false, /*fusable=*/false);
  check(!habit.has_it(), "behind a large node");
}

void what_follows_a_large_node_is_not_held() {
  ReadHabit habit = made_a_habit();
  check(habit.expects_read(), "before");
  check(!habit.records(/*soon_done=*/false, /*fusable=*/false), "a large node is held");
  check(!habit.expects_read(), "behind a large node");
  same(records(habit, 3), 0, "held behind a large node");
  habit.reads();
  same(records(habit, 3), 0, "held after a large node was read");
}

void what_makes_a_group_is_not_run_at_once() {
  ReadHabit habit = made_a_habit();
  records(habit, 5, /*fusable=*/true);
  habit.reads();
  check(habit.runs_at_once(/*fusable=*/true, /*small=*/true), "five wait for a group");
  records(habit, 6, /*fusable=*/true);
  habit.reads();
  check(!habit.runs_at_once(/*fusable=*/true, /*small=*/true), "six do not wait for a group");
  check(habit.runs_at_once(/*fusable=*/false, /*small=*/true), "what joins no group waits for one");
  records(habit, 1, /*fusable=*/true);
  habit.reads();
  check(habit.runs_at_once(/*fusable=*/true, /*small=*/false), "a larger one waits for a group");
  records(habit, 2, /*fusable=*/true);
  habit.reads();
  check(!habit.runs_at_once(/*fusable=*/true, /*small=*/false), "two larger ones do not wait");
}

}  // namespace
}  // namespace lazyeng::test

int main(int argc, char** argv) {
  using namespace lazyeng::test;
  return run_tests(
      argc, argv,
      {{"two reads make a habit", two_reads_make_a_habit},
       {"reads of what is there make none", reads_of_what_is_there_make_none},
       {"no more than a little is held", no_more_than_a_little_is_held},
       {"a habit ends where much is recorded", a_habit_ends_where_much_is_recorded},
       {"what follows a large node is not held", what_follows_a_large_node_is_not_held},
       {"what makes a group is not run at once", what_makes_a_group_is_not_run_at_once}});
}
