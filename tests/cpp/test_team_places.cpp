// tests/cpp/test_team_places.cpp: threads that share a core get one each
// (run/cores/team_places.h).

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "csrc/run/cores/team_places.h"
#include "tests/cpp/check.h"

namespace lazyeng::test {
namespace {

using run::move_apart;
using run::TeamPlaces;

cpu_set_t allowed() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof(set), &set);
  return set;
}

std::vector<int> cores() {
  const cpu_set_t set = allowed();
  std::vector<int> found;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set)) found.push_back(core);
  return found;
}

void bind_to(int core) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  sched_setaffinity(0, sizeof(one), &one);
}

/// The calling thread is on that core, and may leave it: Linux lets it stay.
void go_to(int core) {
  const cpu_set_t set = allowed();
  bind_to(core);
  sched_setaffinity(0, sizeof(set), &set);
}

void a_helper_moves() {
  const std::vector<int> all = cores();
  if (all.size() < 2) return;  // (nowhere to go)
  const cpu_set_t before = allowed();
  int moved = 0, alone = 0;
  bool is_bound = false;
  for (int round = 0; round < 20; ++round) {
    go_to(all[0]);
    TeamPlaces places;
    std::thread helper([&] {
      go_to(all[0]);
      places.take(2);
      alone += places.moved() > 0 && sched_getcpu() != all[0];
      const cpu_set_t after = allowed();
      is_bound |= !CPU_EQUAL(&before, &after);
    });
    places.take(2);
    helper.join();
    moved += places.moved();
  }
  check(moved > 0, "found on the maker's core it moves");
  check(alone > 0, "to one on which the maker is not");
  check(!is_bound, "and may use as many cores as before");
}

void who_may_use_one_core_stays() {
  const std::vector<int> all = cores();
  int moved = 0;
  std::thread outer([&] {
    bind_to(all[0]);
    TeamPlaces made;
    std::thread second([&] { made.take(2); });
    made.take(2);
    second.join();
    moved = made.moved();
  });
  outer.join();
  check(moved == 0, "who may use one core stays there");
}

void a_watcher_moves_them() {
  const std::vector<int> all = cores();
  if (all.size() < 2) return;
  std::atomic<pid_t> helper{0};
  std::atomic<bool> over{false};
  std::thread second([&] {
    helper = gettid();
    while (!over) go_to(all[0]);  // (where Linux finds it a better core, it comes back)
  });
  while (helper == 0) std::this_thread::yield();
  while (true) {  // until it is seen there
    go_to(all[0]);
    if (move_apart({{gettid(), helper}, 2}) > 0) break;
  }
  over = true;
  second.join();
  same(cores().size(), all.size(), "cores that it may use");
}

void threads_that_are_gone() {
  pid_t gone = 0;
  std::thread([&] { gone = gettid(); }).join();
  check(move_apart({{gone, gone, gettid()}, 3}) == 0, "who is gone is left alone");
}

}  // namespace
}  // namespace lazyeng::test

int main(int argc, char** argv) {
  using namespace lazyeng::test;
  return run_tests(argc, argv,
                   {{"a helper moves", a_helper_moves},
                    {"who may use one core stays", who_may_use_one_core_stays},
                    {"a watcher moves them", a_watcher_moves_them},
                    {"threads that are gone are left alone", threads_that_are_gone}});
}
