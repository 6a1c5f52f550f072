// tests/cpp/test_doubts.cpp: what runs have shown of one kind of calls says nothing about others.
#include <thread>

#include "csrc/run/doubts.h"
#include "tests/cpp/check.h"

namespace lazyeng::test {
namespace {

using run::DoubtedKind;

void of_its_kind_alone() {
  // More kinds than there are stamps: some share one with a doubted kind.
  constexpr DoubtedKind kKinds = 10'000;
  for (DoubtedKind kind = 1; kind < kKinds; kind += 10) run::doubt_layouts(kind);
  run::doubt_structured_meta(7);
  for (DoubtedKind kind = 1; kind < kKinds; ++kind) {
    check(run::doubts_of(kind).layouts == (kind % 10 == 1), "layouts of one in ten kinds");
    check(run::doubts_of(kind).structured == (kind == 7), "the structured meta of one kind");
  }
}

void plans_before_it_are_asked_for_anew() {
  constexpr DoubtedKind kKind = 123'456'789;
  const uint32_t before = run::doubts_stamp(kKind);
  run::doubt_structured_meta(kKind);
  check(run::doubts_stamp(kKind) == before, "plans by other means stay right");
  run::doubt_layouts(kKind);
  check(run::doubts_stamp(kKind) != before, "plans of such layouts do not");
  check(run::doubts_of(kKind).layouts && run::doubts_of(kKind).structured, "both are kept");
}

void who_sees_the_stamp_finds_the_doubt() {
  constexpr DoubtedKind kFirst = 1'000'000, kCount = 2'000;
  std::vector<uint32_t> before;
  for (DoubtedKind k = 0; k < kCount; ++k) before.push_back(run::doubts_stamp(kFirst + k));
  std::thread doubting([] {
    for (DoubtedKind k = 0; k < kCount; ++k) run::doubt_layouts(kFirst + k);
  });
  for (DoubtedKind k = 0; k < kCount; ++k) {
    while (run::doubts_stamp(kFirst + k) == before[k]) std::this_thread::yield();
    check(run::doubts_of(kFirst + k).layouts, "it is in the table");
  }
  doubting.join();
}

void more_kinds_than_are_kept() {
  for (DoubtedKind kind = 5'000'000; kind < 5'040'000; ++kind) {
    run::doubt_layouts(kind);
    check(run::doubts_of(kind).layouts, "the last one is known");
  }
}

}  // namespace
}  // namespace lazyeng::test

int main(int argc, char** argv) {
  using namespace lazyeng::test;
  return run_tests(argc, argv,
                   {{"a doubt is of its kind alone", of_its_kind_alone},
                    {"plans before a doubt are asked for anew", plans_before_it_are_asked_for_anew},
                    {"who sees the stamp finds the doubt", who_sees_the_stamp_finds_the_doubt},
                    {"there may be more kinds than are kept", more_kinds_than_are_kept}});
}
