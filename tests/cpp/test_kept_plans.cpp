// tests/cpp/test_kept_plans.cpp: which plans stay when there is no room for all
// (fuse/kept_plans.h).
#include "csrc/fuse/kept_plans.h"
#include "tests/cpp/check.h"

namespace lazyeng::test {
namespace {

using Plans = fuse::KeptPlans<const uint64_t>;

void keep(Plans& plans, uint64_t hash, size_t size = 1, uint64_t after = 1) {
  plans.keep(hash, size, std::make_unique<const uint64_t>(hash), after);
}

void what_is_kept_is_found() {
  Plans plans(3);
  for (uint64_t hash = 0; hash < 3; ++hash) keep(plans, hash);
  for (uint64_t hash = 0; hash < 3; ++hash) check(*plans.find(hash) == hash, "its own plan");
  check(!plans.find(3), "not kept");
  plans.clear();
  check(!plans.find(0), "cleared");
}

void one_hash_has_one_plan() {
  Plans plans(2);
  for (int i = 0; i < 9; ++i) keep(plans, 7);
  keep(plans, 8);
  check(plans.find(7) && plans.find(8), "a plan's place is free once it is replaced");
  keep(plans, 9, 3);
  check(!plans.find(9), "larger than all the room");
}

/// Windows that come round and round, each kept when it is not found.
int found_in_rounds(Plans& plans, uint64_t from, uint64_t to, int rounds) {
  int found = 0;
  for (int round = 0; round < rounds; ++round)
    for (uint64_t hash = from; hash < to; ++hash) {
      if (plans.find(hash))
        ++found;
      else
        keep(plans, hash, 1, to - from);
    }
  return found;
}

void a_loop_that_is_too_long_finds_what_there_is_room_for() {
  Plans plans(50);
  found_in_rounds(plans, 0, 100, 1);
  check(found_in_rounds(plans, 0, 100, 10) == 500, "half of them in each round");
}

void what_is_no_longer_used_makes_room() {
  Plans plans(50);
  found_in_rounds(plans, 0, 50, 3);
  found_in_rounds(plans, 100, 110, 2);
  check(found_in_rounds(plans, 100, 110, 1) == 10, "a short loop has its plans at once");
  found_in_rounds(plans, 200, 250, 3);
  check(found_in_rounds(plans, 200, 250, 1) == 50, "and one that needs all the room");
}

void what_comes_more_often_stays() {
  Plans plans(50);
  found_in_rounds(plans, 0, 50, 2);
  for (int round = 0; round < 10; ++round) {
    check(found_in_rounds(plans, 0, 50, 1) == 50, "all of the loop, in each round");
    keep(plans, 100 + static_cast<uint64_t>(round), 1, 60);
  }
}

}  // namespace
}  // namespace lazyeng::test

int main(int argc, char** argv) {
  using namespace lazyeng::test;
  return run_tests(argc, argv,
                   {{"what is kept is found", what_is_kept_is_found},
                    {"one hash has one plan", one_hash_has_one_plan},
                    {"a loop that is too long finds what there is room for",
                     a_loop_that_is_too_long_finds_what_there_is_room_for},
                    {"what is no longer used makes room", what_is_no_longer_used_makes_room},
                    {"what comes more often stays", what_comes_more_often_stays}});
}
