// csrc/run/caller/read_habit.h: whether a program reads soon after it has recorded.
//
// `if x.any():`, `total += loss.item()`: a few ops that are soon done, then a read. Handing these
// to a worker costs two wake-ups and a sleep, up to ten times what the ops cost; the reader runs
// them itself in less time than a worker takes to wake up. So a thread that has read twice in a row
// soon after it recorded is expected to do it again: what it records is held for its read, while
// that is little, or run there and then if its arguments are complete (at_once.cpp). (If the read
// does not come, the worker that watches held windows takes them.)
//
// What takes milliseconds had better run while the program does something else. But a program that
// has nothing else to do, reads at once, and pauses until the next request, gains nothing by a
// worker: after the pause that has to wake up, and to make a team of threads, where the program's
// thread has one. So such ops are the reader's as well, if it has twice read at once after such.
#pragma once

#include <chrono>
#include <cstdint>

namespace lazyeng::run {

/// Of one thread.
class ReadHabit {
 public:
  using Clock = std::chrono::steady_clock;

  /// True if the node may be held for a read. `soon_done`: or long, and for the reader all the
  /// same. `fusable`: it may join a group.
  bool records(bool soon_done, bool fusable) {
    ++since_read_;
    fusable_ += fusable;
    all_soon_done_ &= soon_done;
    return in_a_row_ >= kTwice && is_little();
  }

  /// An op that takes milliseconds was recorded, or run, from then to then. `short_enough`: for a
  /// reader to run it.
  void has_long_op(bool short_enough, Clock::time_point begin, Clock::time_point end) {
    if (long_ops_ == LongOps::none)
      long_ops_ = LongOps::short_enough;
    else
      elsewhere_ += begin - end_of_long_op_;
    if (!short_enough) long_ops_ = LongOps::too_long;
    end_of_long_op_ = end;
  }

  /// Whether there was one since the last read; and so much time that went by since then was that
  /// of other ops, run at the call.
  bool had_long_op() const { return long_ops_ != LongOps::none; }
  void ran_for(Clock::duration time) { elsewhere_ -= time; }

  /// Whether such ops are for the thread itself.
  bool runs_long_ops() const { return long_in_a_row_ >= kTwice; }

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
    if (had_long_op()) look_back_at_long_ops();
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

  /// Time of its own from which a thread had better let others compute meanwhile.
  static constexpr std::chrono::microseconds kWorthHandingOver{300};

  enum class LongOps : uint8_t { none, short_enough, too_long };

  bool is_little() const { return all_soon_done_ && since_read_ <= kFew; }

  void look_back_at_long_ops() {
    elsewhere_ += Clock::now() - end_of_long_op_;
    const bool at_once =
        long_ops_ == LongOps::short_enough && since_read_ <= kFew && elsewhere_ < kWorthHandingOver;
    long_in_a_row_ = at_once ? long_in_a_row_ + (long_in_a_row_ < kTwice) : 0;
    long_ops_ = LongOps::none;
    elsewhere_ = {};
  }

  uint32_t since_read_ = 0;
  uint32_t fusable_ = 0, fusable_before_ = 0;  // since the last read; between the last two
  uint32_t in_a_row_ = 0;
  bool all_soon_done_ = true;

  LongOps long_ops_ = LongOps::none;    // since the last read
  Clock::time_point end_of_long_op_{};  // of the last one
  Clock::duration elsewhere_{};         // since the first one, without the time in ops
  uint32_t long_in_a_row_ = 0;          // reads at once after such
};

inline constinit thread_local ReadHabit read_habit;

}  // namespace lazyeng::run
