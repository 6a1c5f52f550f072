// csrc/record/read_habit.h: whether a program reads soon after it has recorded.
//
// `if x.any():`, `total += loss.item()`: a few small ops, then a read. Handing these to a worker
// costs two wake-ups and a sleep, ten times what the ops cost; the reader runs them itself in less
// time than a worker takes to wake up. So a thread that has read twice in a row soon after it
// recorded is expected to do it again: what it records is held for its read, while that is little,
// or run there and then if its arguments are complete (Recorder::run_at_once).
// (If the read does not come, the worker that watches held windows takes them.)
#pragma once

#include <cstdint>

namespace lazyeng::record {

/// Of one thread.
class ReadHabit {
 public:
  /// True if the node may be held for a read.
  bool records(bool brief) {
    ++since_read_;
    all_brief_ &= brief;
    return in_a_row_ >= kTwice && is_little();
  }

  void reads() {
    if (since_read_ == 0) return;
    in_a_row_ = is_little() ? in_a_row_ + (in_a_row_ < kTwice) : 0;
    since_read_ = 0;
    all_brief_ = true;
  }

 private:
  static constexpr uint32_t kTwice = 2;
  static constexpr uint32_t kFew = 32;  // with 16 a step of 27 ops was 1.3 times as slow

  bool is_little() const { return all_brief_ && since_read_ <= kFew; }

  uint32_t since_read_ = 0;
  uint32_t in_a_row_ = 0;
  bool all_brief_ = true;
};

inline constinit thread_local ReadHabit read_habit;

}  // namespace lazyeng::record
