// tests/cpp/test_read_habit.cpp: when recorded nodes are held for a read
// (run/caller/read_habit.h).
#include <thread>

#include "csrc/run/caller/only_thread.h"
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

using std::chrono::milliseconds;

/// A step of the program: a long op that it records, or runs, and a read after so long a time of
/// its own. (None: on a busy machine some goes by.)
constexpr milliseconds kNone{-1000};
void has_long_op(ReadHabit& habit, milliseconds own = kNone, bool short_enough = true) {
  const auto end = ReadHabit::Clock::now() - own;
  habit.records(habit.runs_long_ops(), /*fusable=*/false);
  habit.has_long_op(short_enough, end - milliseconds(5), end);
  habit.reads();
}

ReadHabit made_a_habit_of_long_ops() {
  ReadHabit habit;
  for (int i = 0; i < 2; ++i) {
    check(!habit.runs_long_ops(), "before two reads");
    has_long_op(habit);
  }
  check(habit.runs_long_ops(), "after two reads");
  return habit;
}

void who_reads_at_once_runs_long_ops() {
  ReadHabit habit = made_a_habit_of_long_ops();
  check(!habit.has_it(), "handed over so far");
  for (int i = 0; i < 2; ++i) has_long_op(habit);
  check(habit.has_it(), "run by the reader");
  for (int i = 0; i < 5; ++i) {
    records(habit, 3);
    habit.reads();
  }
  check(habit.runs_long_ops(), "reads of small ones say nothing of long ones");
}

void who_has_other_things_to_do_hands_them_over() {
  ReadHabit habit = made_a_habit_of_long_ops();
  has_long_op(habit, milliseconds(5));
  check(!habit.runs_long_ops(), "busy before the read");
  habit = made_a_habit_of_long_ops();
  const auto now = ReadHabit::Clock::now();
  habit.records(true, false);
  habit.has_long_op(true, now - milliseconds(20), now - milliseconds(15));
  habit.records(true, false);
  habit.has_long_op(true, now - milliseconds(5), now);
  habit.reads();
  check(!habit.runs_long_ops(), "busy between two");
}

void time_in_other_ops_is_not_its_own() {
  ReadHabit habit = made_a_habit_of_long_ops();
  const auto now = ReadHabit::Clock::now();
  habit.records(true, false);
  habit.has_long_op(true, now - milliseconds(2005), now - milliseconds(2000));
  check(habit.had_long_op(), "noted");
  habit.ran_for(milliseconds(3000));
  habit.reads();
  check(habit.runs_long_ops(), "it ran others at the call");
  check(!habit.had_long_op(), "since the read");
}

void what_is_too_long_or_too_much_is_handed_over() {
  ReadHabit habit = made_a_habit_of_long_ops();
  has_long_op(habit, kNone, /*short_enough=*/false);
  check(!habit.runs_long_ops(), "one that is too long");
  habit = made_a_habit_of_long_ops();
  records(habit, 32);
  has_long_op(habit);
  check(!habit.runs_long_ops(), "with many others");
}

/// Until the calling thread has seen it: on a busy machine too long may go by after one.
template <class Note>
void other_thread(const Note& note) {
  do std::thread(note).join();
  while (run::is_only_thread());
}

void threads_with_long_ops_know_of_each_other() {
  const auto sleep = [] { std::this_thread::sleep_for(milliseconds(150)); };
  check(run::is_only_thread() && run::is_only_thread(), "no other");
  bool only = true;  // (of the thread that was seen, or of one before)
  other_thread([&] { only = only && run::is_only_thread(); });
  check(!only, "the other");
  sleep();
  check(run::is_only_thread(), "none lately");
  other_thread([] { run::note_long_op(); });  // one that never asks
  sleep();
  check(run::is_only_thread(), "none lately, again");
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
       {"what makes a group is not run at once", what_makes_a_group_is_not_run_at_once},
       {"who reads at once runs long ops", who_reads_at_once_runs_long_ops},
       {"who has other things to do hands them over", who_has_other_things_to_do_hands_them_over},
       {"time in other ops is not its own", time_in_other_ops_is_not_its_own},
       {"what is too long or too much is handed over", what_is_too_long_or_too_much_is_handed_over},
       {"threads with long ops know of each other", threads_with_long_ops_know_of_each_other}});
}
