// csrc/run/cores/openmp_team.h: whether the helper threads of OpenMP spin between kernels.
//
// libgomp keeps a team of helpers for each thread that ever ran a parallel region. Between regions
// they spin for a while, but only as long as all teams together have no more threads than there are
// cores; beyond that they sleep at once, and every region begins with a system call. Inside lazy()
// large kernels run on engine threads, and a core that a helper spins on is one that the recording
// thread lacks: that slows a small MLP, which records all the time. Sleeping helpers slow an LSTM,
// whose kernels are many and large. So helpers shall sleep while the program records, and may spin
// while it waits. The one way to tell libgomp so is the number of threads: an idle team,
// that counts and costs nothing else.
//
// Telling takes some 100 us, and a program that reads a result in every step alternates faster than
// that: it would wait for kernels whose helpers sleep. So helpers of a program that has waited
// lately may spin all the time: what its recording loses is less.
//
// On cores that other programs want too, helpers sleep whatever the program does (crowding.h).
//
// Eager code of the program shall not notice: when nothing has been recorded for a while, the idle
// team ends, and so do the teams of engine threads that have nothing to do.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "csrc/run/cores/crowding.h"
#include "csrc/run/cores/other_programs.h"
#include "csrc/run/cores/team_places.h"

namespace lazyeng::run {

/// region(data) on each thread of the calling thread's team.
void in_team(void (*region)(void*), void* data);

/// Keeps the idle team, or not. Without libgomp it does nothing. Any thread; but start() and stop()
/// are called by one at a time, as the engine starts and stops.
class OpenMpHelpers {
 public:
  void start();
  /// Before a fork, which teams do not survive: ends that of the calling thread too. (The child
  /// would wait for it for ever in its first parallel region, as it does in eager torch.)
  void stop();

  /// Something was recorded. Costs a load while the idle team is there.
  void program_records() {
    if (!recorded_.load(std::memory_order_relaxed)) note_record();
  }
  /// The calling thread waits for the engine and records nothing, or does so no longer. Its own
  /// team, left over from eager code, ends too.
  void program_waits(bool waits);

  /// The calling engine thread is going to have a team, until end_own_team().
  void engine_has_team();
  /// Whether the calling thread of the program may have one, as in eager code: no engine thread
  /// has, helpers may spin, and the thread has one already, or has wanted one often lately.
  bool program_may_have_team() const;
  /// It runs an op that would have all cores if it had one.
  void program_wants_team();
  /// It runs one on all cores.
  void program_has_team();

  /// Told to sleep between kernels, on account of the program.
  bool sleep() const { return has_team_.load(std::memory_order_relaxed); }
  /// Other programs want the cores.
  bool is_crowded() const;

  /// The calling thread has waited for a result, and not for a moment only.
  void program_has_waited();

  /// The calling thread is about to run a kernel on all cores, and no other thread does: every now
  /// and then it looks whether its team finds them, and has them each for itself.
  void look_for_cores();
  /// One has taken it longer than one core would have.
  void kernel_was_late();
  /// How often its helpers stood in line and were told to sleep.
  uint64_t times_crowded() const { return times_crowded_.load(std::memory_order_relaxed); }

  /// Ends the team of the calling thread.
  void end_own_team();

  /// In a forked child: a team that the forking thread still had exists on paper only.
  void after_fork_in_child() noexcept;

 private:
  using Clock = std::chrono::steady_clock;

  void work();
  void note_record();
  void note_members(const TeamMembers& members);
  void move_members_apart(std::unique_lock<std::mutex>& lock);
  void look_for_a_line(Clock::time_point now, const Crowding::Times& times, int threads);
  bool has_waited_lately() const;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread thread_;
  bool runs_ = false;
  int waiting_ = 0;
  TeamMembers members_;  // of the engine thread's team that looked last
  bool recording_ = false;
  std::atomic<bool> has_team_{false};  // written by thread_
  std::atomic<Clock::time_point> last_wait_{Clock::time_point::min()};
  std::atomic<bool> recorded_{false};  // since the thread looked last
  Crowding crowding_;                  // of who runs on all cores
  OtherPrograms others_;               // likewise
  std::atomic<Clock::time_point> crowded_until_{Clock::time_point::min()};
  std::atomic<uint64_t> times_crowded_{0};
  bool ended_for_fork_ = false;  // the forking thread's team is; between stop() and start()
  std::atomic<bool> forked_{false};
};

OpenMpHelpers& openmp_helpers();

/// Has the calling thread's team end before the thread does. Otherwise its helpers end some time
/// after it, and free what libraries keep for them: a fork in that moment leaves the child a lock
/// of MKL's memory that nobody holds, and it waits for it in its first product.
void end_team_with_this_thread();

/// Calls work() on each thread of the calling thread's team at once, as many as torch has intra-op
/// threads; on the calling thread alone where there is no OpenMP. It must not throw. (Not
/// at::parallel_for: compiled without -fopenmp that is a plain loop, and with it the extension
/// would bring an OpenMP library of its own beside torch's.)
template <class Work>
void in_team(const Work& work) {
  static_assert(noexcept(work()));
  in_team([](void* data) { (*static_cast<const Work*>(data))(); }, const_cast<Work*>(&work));
}

}  // namespace lazyeng::run
