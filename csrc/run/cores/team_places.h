// csrc/run/cores/team_places.h: the threads of a team on cores of their own.
//
// Helpers of OpenMP begin, and wake up, on the core of the thread that wants them, and Linux may
// leave them there while another core has nothing to do: then both spin in barriers, each for a
// time slice, and a kernel of 1 ms takes 3 to 20 (6.18 with two virtual cores: the first large
// kernel of every other burst of steps). So now and then the threads of a team look where they are,
// and one that finds another of the team on its core moves to a core on which there is none. It is
// not bound to that.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>

namespace lazyeng::run {

/// Threads by the kernel's numbers, in a given order.
struct TeamMembers {
  static constexpr size_t kMost = 8;  // (teams on few cores are those that Linux leaves so)
  std::array<pid_t, kMost> threads{};
  size_t count = 0;
};

/// Of one region. Made by the thread that begins it.
class TeamPlaces {
 public:
  TeamPlaces();

  /// On each thread of the team once: it is a member.
  void note_this_thread() noexcept;
  /// Likewise, in a region of so many threads: it has a core of its own from then on, if there is
  /// one. The maker waits here for the others, and sleeps meanwhile: one of them may be waiting for
  /// this very core.
  void take(int threads) noexcept;

  /// Those that were there, the maker first; none if there are too many.
  TeamMembers members() const;

  /// How many threads have moved.
  int moved() const { return moved_.load(std::memory_order_relaxed); }

 private:
  static constexpr int kCores = 1024;  // as many as a cpu_set_t has

  /// False if the core is another thread's.
  bool claim(int core);
  void move();
  void wait_for(int others) const;

  const pid_t maker_;
  std::array<std::atomic<bool>, kCores> taken_{};
  std::array<std::atomic<pid_t>, TeamMembers::kMost> members_{};
  std::atomic<size_t> count_{1};
  std::atomic<int> arrived_{0}, moved_{0};
};

/// The same for threads of this process that are at work, by any thread: those of them that share a
/// core move, but for the first. Returns how many. For a moment such a thread may not use all
/// cores: not for those that ask how many there are, nor for those that a program may bind itself
/// (what it sets within that microsecond is lost).
int move_apart(const TeamMembers& members);

}  // namespace lazyeng::run
