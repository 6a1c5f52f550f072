// csrc/run/cores/program_time.h: what the threads of the program have had of the cores.
#pragma once

#include <time.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

namespace lazyeng::run {

/// Of threads that have waited for the engine at least once. Any thread.
class ProgramTime {
 public:
  /// The calling thread is the program's.
  void note_this_thread();

  /// Microseconds of all their cores, waits included, since this was asked last; nothing as long as
  /// no such thread is known.
  std::optional<double> microseconds();

 private:
  struct Thread {
    clockid_t clock;  // (fails when the thread has ended)
    int64_t nanoseconds;
  };

  std::mutex mutex_;
  std::vector<Thread> threads_;
};

ProgramTime& program_time();

}  // namespace lazyeng::run
