// csrc/record/loop_cuts.h: where the window of a loop is cut, so that windows repeat.
//
// Workers fetch the window when they are idle, which is at another place in each step of a loop.
// Windows that begin and end anywhere seldom repeat, so no step plan (csrc/fuse/step_plan.h) would
// be of use. So a call of one plan is chosen as the *anchor*: the window is cut in front of each
// that comes at least kSegment nodes after the last cut. (A loop may call it several times: one cut
// decides where the next one is, and there are only so many places, so the cuts repeat as well.)
// What is fetched ends at the last cut, if there is one: the rest waits, and begins the next
// window.
//
// An anchor that does not come again is given up, after longer and longer patience, for the next
// node; one that joins no group, if there is one, so that no group is cut.
//
// A hint: any cut gives right windows. Guarded by the lock of the window.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace lazyeng::record {

class LoopCuts {
 public:
  /// A node of this plan (0: of none) is about to enter a window of `size`; `may_join()`: whether
  /// it may become a member of a group.
  template <class MayJoin>
  void enters(uint64_t plan, size_t size, MayJoin may_join) {
    ++since_cut_;
    if (plan == plan_) {
      since_anchor_ = 0;
      came_again_ = true;
      if (since_cut_ > kSegment && size >= kSegment) cut(size);
    } else if (++since_anchor_ > patience_ && plan != 0 &&
               (since_anchor_ > 2 * patience_ || !may_join())) {
      choose(plan);
    }
  }

  /// How many nodes of a window of `size` to take: as many as stand before the last cut.
  size_t up_to_last(size_t size) const { return cuts_.empty() ? size : cuts_.back(); }

  /// These are taken: where they are cut.
  std::vector<size_t> take_up_to_last() {
    std::vector<size_t> within = std::exchange(cuts_, {});
    if (!within.empty()) within.pop_back();
    return within;
  }

  /// All of the window is taken, as somebody reads: loops with reads repeat without cuts.
  void take_all() { cuts_.clear(); }

 private:
  static constexpr size_t kSegment = 100;  ///< a group has at most 128 members
  static constexpr uint64_t kLeastPatience = 256, kMostPatience = 16384;

  void cut(size_t size) {
    cuts_.push_back(size);
    since_cut_ = 0;
  }

  void choose(uint64_t plan) {
    patience_ =
        came_again_ ? kLeastPatience : std::clamp(2 * patience_, kLeastPatience, kMostPatience);
    plan_ = plan;
    since_anchor_ = 0;
    came_again_ = false;
  }

  uint64_t plan_ = ~uint64_t{0};  // the anchor's
  uint64_t patience_ = 0;         // nodes that may pass until it comes again
  uint64_t since_anchor_ = 0, since_cut_ = 0;
  bool came_again_ = false;
  std::vector<size_t> cuts_;  // in the window, ascending
};

}  // namespace lazyeng::record
