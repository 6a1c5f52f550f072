// csrc/run/caller/read_habit.h: whether a program reads soon after it has recorded.
//
// `if x.any():`, `total += loss.item()`: a few ops that are soon done, then a read. Handing these
// to a worker costs two wake-ups and a sleep, up to ten times what the ops cost; the reader runs
// them itself in less time than a worker takes to wake up. So a thread that has read twice in a row
// soon after it recorded is expected to do it again: what it records is held for its read, while
// that is little, or run there and then if its arguments are complete (at_once.cpp). (If the read
// does not come, the worker that watches held windows takes them.)
#pragma once

#include <cstdint>

namespace lazyeng::run {

/// Of one thread.
class ReadHabit {
 public:
  /// True if the node may be held for a read. `fusable`: it may join a group.
  bool records(bool soon_done, bool fusable) {
    ++since_read_;
    fusable_ += fusable;
    all_soon_done_ &= soon_done;
    return in_a_row_ >= kTwice && is_little();
  }

  /// Whether one more node, which is soon done, may be held.
  bool expects_read() const { return in_a_row_ >= kTwice && all_soon_done_ && since_read_ < kFew; }

  /// Of what may be held: whether it may as well run at once. So many together run faster as a
  /// group than each by itself; as many as there were before the last read are expected.
  bool runs_at_once(bool fusable, bool small) const {
    return !fusable || fusable_before_ < (small ? kWorthAGroup : kWorthAGroupOfLarger);
  }

  /// Whether the thread is one that reads soon, and has not recorded more than that since.
  bool has_it() const { return in_a_row_ >= kTwice && is_little(); }

  void reads() {
    if (since_read_ == 0) return;
    in_a_row_ = is_little() ? in_a_row_ + (in_a_row_ < kTwice) : 0;
    fusable_before_ = fusable_;
    since_read_ = fusable_ = 0;
    all_soon_done_ = true;
  }

 private:
  static constexpr uint32_t kTwice = 2;
  static constexpr uint32_t kFew = 32;  // with 16 a step of 27 ops was 1.3 times as slow

  static constexpr uint32_t kWorthAGroup = 6;
  static constexpr uint32_t kWorthAGroupOfLarger = 2;  // (it spares the way through memory)

  bool is_little() const { return all_soon_done_ && since_read_ <= kFew; }

  uint32_t since_read_ = 0;
  uint32_t fusable_ = 0, fusable_before_ = 0;  // since the last read; between the last two
  uint32_t in_a_row_ = 0;
  bool all_soon_done_ = true;
};

inline constinit thread_local ReadHabit read_habit;

}  // namespace lazyeng::run
