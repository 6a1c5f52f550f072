// tests/cpp/test_loop_cuts.cpp: where the windows of loops are cut (record/window/loop_cuts.h).
#include "csrc/record/window/loop_cuts.h"
#include "tests/cpp/check.h"

namespace lazyeng::test {
namespace {

using record::LoopCuts;

/// A window, which loses its first nodes whenever somebody fetches it.
class Window {
 public:
  explicit Window(bool on_device = false) : on_device_(on_device) {}

  /// The plan of a node in the loop is its place there, from 1 on; those beyond `joining` may join
  /// groups.
  void record(uint64_t plan, uint64_t joining = ~uint64_t{0}) {
    enter({plan, ++number_, plans_.size(), on_device_}, false, plan > joining);
  }
  /// One that reads what was there before the loop, and makes so many bytes.
  void record_anew(uint64_t plan, uint64_t bytes = 0) {
    enter({plan, ++number_, plans_.size(), on_device_, bytes}, true, true);
  }
  bool heavy() const { return cuts_.heavy(); }

  /// The pieces that are fetched.
  std::vector<std::vector<uint64_t>> fetch() {
    const size_t count = cuts_.up_to_last(plans_.size());
    std::vector<size_t> ends = cuts_.take_up_to_last(number_);
    ends.push_back(count);
    std::vector<std::vector<uint64_t>> pieces;
    size_t begin = 0;
    for (const size_t end : ends) {
      check(begin < end, "no piece is empty");
      pieces.emplace_back(plans_.begin() + static_cast<ptrdiff_t>(begin),
                          plans_.begin() + static_cast<ptrdiff_t>(end));
      begin = end;
    }
    plans_.erase(plans_.begin(), plans_.begin() + static_cast<ptrdiff_t>(count));
    return pieces;
  }

  /// Where they are cut if all are taken.
  std::vector<size_t> fetch_all() {
    plans_.clear();
    return cuts_.take_all(number_);
  }

  size_t size() const { return plans_.size(); }

 private:
  void enter(const LoopCuts::Entering& node, bool anew, bool joins) {
    cuts_.enters(node, [&](uint64_t) { return anew; }, [&] { return joins; });
    plans_.push_back(node.plan);
  }

  const bool on_device_;
  uint64_t number_ = 0;
  LoopCuts cuts_;
  std::vector<uint64_t> plans_;
};

/// Records `steps` of a loop of `length` and fetches at changing places; the pieces of the later
/// half of them.
std::vector<std::vector<uint64_t>> pieces_of(Window& window, int steps, uint64_t length) {
  std::vector<std::vector<uint64_t>> later;
  size_t recorded = 0;
  for (int step = 0; step < steps; ++step)
    for (uint64_t plan = 1; plan <= length; ++plan) {
      window.record(plan);
      if (++recorded % 391 != 0) continue;
      for (auto& piece : window.fetch())
        if (step >= steps / 2) later.push_back(std::move(piece));
    }
  return later;
}

void pieces_of_a_loop_are_the_same() {
  for (const uint64_t length : {3, 40, 101, 250}) {
    Window window;
    const auto pieces = pieces_of(window, 4000 / static_cast<int>(length) + 20, length);
    check(pieces.size() > 2, "pieces");
    for (const auto& piece : pieces) check(piece == pieces[0], "all pieces are equal");
    check(pieces[0].size() >= 100, "and long");
  }
}

void an_anchor_that_is_gone_is_given_up() {
  Window window;
  for (uint64_t plan = 1000; plan < 9000; ++plan) window.record(plan);  // (none comes again)
  window.fetch();
  const auto pieces = pieces_of(window, 2000, 50);
  for (const auto& piece : pieces) check(piece == pieces[0], "all pieces are equal");
}

void nothing_is_cut_without_a_loop() {
  Window window;
  for (uint64_t plan = 1; plan < 1000; ++plan) window.record(plan);
  same(window.fetch().size(), size_t{1}, "pieces");
  same(window.size(), size_t{0}, "left");
}

void anchors_join_no_group_if_they_can() {
  Window window;
  for (uint64_t plan = 1000; plan < 2000; ++plan) window.record(plan, /*joining=*/0);
  // Of a loop of 120 in which only the call at place 7 joins no group.
  for (int step = 0; step < 60; ++step)
    for (uint64_t plan = 1; plan <= 120; ++plan) window.record(plan == 7 ? 7 : plan + 10, 8);
  window.fetch();
  for (uint64_t plan = 1; plan <= 240; ++plan)
    window.record((plan - 1) % 120 + 1 == 7 ? 7 : (plan - 1) % 120 + 11, 8);
  for (const auto& piece : window.fetch()) same(piece[0], uint64_t{7}, "first of a piece");
}

/// One plan comes five times in a chain of 20, which only the first node begins.
void record_chain(Window& window, uint64_t bytes = 0) {
  for (uint64_t i = 0; i < 20; ++i)
    if (i == 0)
      window.record_anew(1, bytes);
    else
      window.record(1 + i % 4);
}

void no_chain_is_cut() {
  Window window(/*on_device=*/true);
  for (int step = 0; step < 200; ++step) {
    record_chain(window);
    if (step % 17 != 16) continue;
    for (const auto& piece : window.fetch()) {
      same(piece.size() % 20, size_t{0}, "of whole chains");
      check(piece.size() >= 100, "and long");
    }
  }
}

void a_loop_whose_anchors_no_longer_start_anew_is_cut() {
  Window window(/*on_device=*/true);
  for (int step = 0; step < 30; ++step) record_chain(window);
  window.fetch();
  const auto pieces = pieces_of(window, 300, 20);
  for (const auto& piece : pieces) check(piece == pieces[0], "all pieces are equal");
}

void heavy_steps_are_pieces() {
  Window window(/*on_device=*/true);
  for (int i = 0; i < 3; ++i) window.record(77);  // (an anchor that is gone)
  window.fetch();
  record_chain(window, uint64_t{1} << 30);
  check(!window.heavy(), "the first one may go on");
  record_chain(window, uint64_t{1} << 30);
  check(window.heavy(), "the first one is complete");
  const auto pieces = window.fetch();
  same(pieces.size(), size_t{1}, "pieces");
  same(pieces[0].size(), size_t{20}, "nodes of the first");
  check(!window.heavy(), "what is left is one of them");
  same(window.size(), size_t{20}, "left");
  record_chain(window, uint64_t{1} << 30);
  record_chain(window, uint64_t{1} << 30);
  check(window.fetch_all() == std::vector<size_t>{20, 40}, "read, each is a piece");
  check(!window.heavy(), "nothing is left");
  for (int step = 0; step < 12; ++step) record_chain(window);
  check(window.fetch_all().empty(), "light ones are read whole");
}

/// A model of equal layers; the calls at both of its ends come once.
void record_model(Window& window, uint64_t layers) {
  for (uint64_t plan : {101, 102, 103}) window.record(plan);
  for (uint64_t i = 0; i < layers; ++i)
    for (uint64_t plan = 1; plan <= 30; ++plan) window.record(plan);
  for (uint64_t plan : {104, 105}) window.record(plan);
}

void steps_on_a_device_are_divided_alike() {
  for (const uint64_t layers : {1, 3, 4, 7, 16, 60}) {
    const uint64_t length = 30 * layers + 5;
    Window window(/*on_device=*/true);
    for (int step = 0; step < 8; ++step) record_model(window, layers);
    window.fetch();
    size_t since = 0, begun = 0;
    for (int step = 0; step < 40; ++step) {
      record_model(window, layers);
      for (const auto& piece : window.fetch()) {
        const bool begins = piece[0] == 101;
        if (begins && begun++) same(since % length, size_t{0}, "whole steps between two begins");
        since = (begins ? 0 : since) + piece.size();
        check(piece.size() <= 2 * 101 + length % 101 || piece.size() == length, "not too long");
      }
    }
    check(begun > 10, "steps begin pieces");
  }
}

void short_windows_are_not_cut() {
  Window window;
  for (int step = 0; step < 1000; ++step) {
    for (uint64_t plan = 1; plan <= 99; ++plan) window.record(plan);
    same(window.fetch().size(), size_t{1}, "pieces");
    same(window.size(), size_t{0}, "left");
  }
}

void nodes_of_no_plan_are_no_anchors() {
  Window window;
  for (int i = 0; i < 3000; ++i) window.record(0);
  same(window.fetch().size(), size_t{1}, "pieces");
}

}  // namespace
}  // namespace lazyeng::test

int main(int argc, char** argv) {
  using namespace lazyeng::test;
  return run_tests(argc, argv,
                   {{"the pieces of a loop are the same", pieces_of_a_loop_are_the_same},
                    {"an anchor that is gone is given up", an_anchor_that_is_gone_is_given_up},
                    {"nothing is cut without a loop", nothing_is_cut_without_a_loop},
                    {"anchors join no group if they can", anchors_join_no_group_if_they_can},
                    {"no chain is cut", no_chain_is_cut},
                    {"a loop whose anchors no longer start anew is cut",
                     a_loop_whose_anchors_no_longer_start_anew_is_cut},
                    {"heavy steps are pieces", heavy_steps_are_pieces},
                    {"steps on a device are divided alike", steps_on_a_device_are_divided_alike},
                    {"short windows are not cut", short_windows_are_not_cut},
                    {"nodes of no plan are no anchors", nodes_of_no_plan_are_no_anchors}});
}
