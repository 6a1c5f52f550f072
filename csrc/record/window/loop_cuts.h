// csrc/record/window/loop_cuts.h: where the window of a loop is cut, so that windows repeat.
//
// Workers fetch the window when they are idle, which is at another place in each step of a loop.
// Windows that begin and end anywhere seldom repeat, so no step plan (csrc/fuse/step_plan.h) would
// be of use. So a call of one plan is chosen as the *anchor*: the window is cut in front of each
// that comes at least kSegment nodes after the last cut. (A loop may call it several times: one cut
// decides where the next one is, and there are only so many places, so the cuts repeat as well.)
// What is fetched ends at the last cut, if there is one: the rest waits, and begins the next
// window.
//
// On a device:
//
// - A step of the loop that begins by reading nothing that was written since the last cut *starts
//   anew*: a chain of ops over the same input, say. Where a loop's anchors do, the window is cut at
//   these (up to 200 nodes away), so that no chain is cut, which would be another kernel each time.
// - What such steps make may be *heavy*: then each is a piece, however short, and those who run it
//   need not wait for a longer window.
// - A step is divided in the same way each time, from its beginning on (loop_period.h): the same
//   ops are then over the same memory, as a CUDA graph has it.
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

#include "csrc/record/window/loop_period.h"

namespace lazyeng::record {

class LoopCuts {
 public:
  struct Entering {
    uint64_t plan;  ///< 0: of none
    uint64_t number;
    size_t size;            ///< of the window before it
    bool launched = false;  ///< on a device
    uint64_t bytes = 0;     ///< that it makes there
  };

  /// A node is about to enter the window. `starts_anew(number)`: whether it reads nothing that
  /// nodes after that number write; `may_join()`: whether it may become a member of a group.
  template <class StartsAnew, class MayJoin>
  void enters(const Entering& node, StartsAnew starts_anew, MayJoin may_join) {
    ++since_cut_;
    const bool begins = node.launched && period_.enters(node.plan);
    const bool anchor = node.plan == plan_;
    if (anchor) {
      since_anchor_ = 0;
      came_again_ = true;
    } else if (++since_anchor_ > patience_ && node.plan != 0 &&
               (since_anchor_ > 2 * patience_ || !may_join())) {
      choose(node.plan);
    }
    if (node.size > 0 && (begins || anchor || bytes_since_cut_ >= kHeavy))
      consider(node, anchor, begins, node.launched && starts_anew(cut_number_));
    bytes_since_cut_ += node.bytes;
  }

  /// Whether the window is known to be cut before long, and is not yet.
  bool will_cut() const { return period_.length() > 0 && cuts_.empty(); }
  /// Whether what stands before the last cut is worth to be run now.
  bool heavy() const { return heavy_; }

  /// How many nodes of a window of `size` to take: as many as stand before the last cut.
  size_t up_to_last(size_t size) const { return cuts_.empty() ? size : cuts_.back(); }

  /// These are taken, of nodes up to that number: where they are cut.
  std::vector<size_t> take_up_to_last(uint64_t number) {
    if (cuts_.empty()) forget_window(number);
    heavy_ = false;
    std::vector<size_t> within = std::exchange(cuts_, {});
    if (!within.empty()) within.pop_back();
    return within;
  }

  /// All of the window is taken, as somebody reads: loops with reads repeat without cuts, but for
  /// heavy steps, of which there may be any number, and where `keep` says so. Where it is cut.
  std::vector<size_t> take_all(uint64_t number, bool keep = false) {
    forget_window(number);
    std::vector<size_t> within = std::exchange(cuts_, {});
    if (!std::exchange(heavy_, false) && !(keep && period_.length() > 0)) within.clear();
    return within;
  }

 private:
  static constexpr size_t kSegment = 100;        ///< a group has at most 128 members
  static constexpr uint64_t kHeavy = 256 << 20;  ///< bytes: a GPU takes a tenth of a millisecond
  static constexpr uint64_t kLeastPatience = 256, kMostPatience = 16384;

  /// Whoever reads what it made reads something that is there.
  void forget_window(uint64_t number) {
    bytes_since_cut_ = 0;
    cut_number_ = number;
  }

  void consider(const Entering& node, bool anchor, bool begins, bool anew) {
    anew_since_cut_ |= anew && (anchor || begins);
    if (anew && bytes_since_cut_ >= kHeavy)
      cut(node, true);
    else if ((begins && begins_piece()) ||
             ((begins || (anchor && anchors_count(node))) && ends_piece(node, anew)))
      cut(node, false);
  }

  /// Of a step's beginning: it is one always if a step is longer than a piece.
  bool begins_piece() const { return period_.length() > kSegment && since_cut_ > 1; }

  /// Where steps of about a piece begin, they are not cut elsewhere.
  bool anchors_count(const Entering& node) const {
    const uint64_t step = node.launched ? period_.length() : 0;
    return step == 0 || step > 2 * kSegment;
  }

  /// (Where none has started anew since the last cut but one, none will.)
  bool ends_piece(const Entering& node, bool anew) const {
    return since_cut_ > kSegment && node.size >= kSegment &&
           (anew || !anew_before_cut_ || since_cut_ > 2 * kSegment);
  }

  void cut(const Entering& node, bool heavy) {
    cuts_.push_back(node.size);
    heavy_ |= heavy;
    since_cut_ = 0;
    bytes_since_cut_ = 0;
    cut_number_ = node.number - 1;
    anew_before_cut_ = std::exchange(anew_since_cut_, false);
  }

  void choose(uint64_t plan) {
    patience_ =
        came_again_ ? kLeastPatience : std::clamp(2 * patience_, kLeastPatience, kMostPatience);
    plan_ = plan;
    since_anchor_ = 0;
    came_again_ = false;
  }

  LoopPeriod period_;
  uint64_t plan_ = ~uint64_t{0};  // the anchor's
  uint64_t patience_ = 0;         // nodes that may pass until it comes again
  uint64_t since_anchor_ = 0, since_cut_ = 0;
  bool came_again_ = false;
  uint64_t cut_number_ = 0, bytes_since_cut_ = 0;
  bool anew_since_cut_ = false, anew_before_cut_ = false;  // since the last cut; before that
  bool heavy_ = false;
  std::vector<size_t> cuts_;  // in the window, ascending
};

}  // namespace lazyeng::record
