// csrc/record/window/loop_period.h: which call begins a step of a loop.
//
// Of the calls that come again, that with the longest way between two of them: once in a step,
// where others come for each layer. Settled once it has come as regularly as a loop's does, and
// given up when it no longer does.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace lazyeng::record {

/// Guarded by the lock of the window.
class LoopPeriod {
 public:
  /// A node of this plan (0: of none) is recorded. Whether a step begins with it.
  bool enters(uint64_t plan) {
    ++at_;
    if (plan == 0) return false;
    Last& last = last_[plan % last_.size()];
    const uint64_t way = last.plan == plan ? at_ - last.at : 0;
    last = {plan, at_};
    if (plan == plan_) {
      times_ = way == length_ ? times_ + 1 : 0;
      begun_at_ = at_;
      length_ = way;
      return settled();
    }
    if (way > length_ && way <= kLongest && (!settled() || length_ < kShort)) {
      plan_ = plan;
      length_ = way;
      begun_at_ = at_;
      times_ = 0;
    } else if (at_ - begun_at_ > kPatience * length_) {
      plan_ = length_ = times_ = 0;
    }
    return false;
  }

  /// Nodes of a step; 0: not known.
  uint64_t length() const { return settled() ? length_ : 0; }

 private:
  static constexpr uint64_t kLongest = 4096, kPatience = 3;
  static constexpr uint64_t kShort = 100;  ///< may be that of a loop within the step
  static constexpr uint32_t kSure = 2;

  struct Last {
    uint64_t plan = 0, at = 0;
  };

  bool settled() const { return times_ >= kSure; }

  std::array<Last, 1024> last_{};  // of each plan, or of another one in its place
  uint64_t at_ = 0;
  uint64_t plan_ = 0, length_ = 0;
  uint64_t begun_at_ = 0;  // the last step
  uint32_t times_ = 0;     // in a row, that its length was the same
};

}  // namespace lazyeng::record
