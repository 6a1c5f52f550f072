// csrc/run/caller/thread_settings.cpp: reading and writing them on the calling thread.
#include "csrc/run/caller/thread_settings.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include "csrc/run/cores/openmp_team.h"
#include "csrc/run/cores/own_threads.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace lazyeng::run {
namespace {

/// torch has a setter only.
bool flushes_denormals() noexcept {
#if defined(__SSE2__)
  constexpr unsigned kFlushToZero = 0x8000;
  return (_mm_getcsr() & kFlushToZero) != 0;
#elif defined(__aarch64__)
  constexpr uint64_t kFlushToZero = uint64_t{1} << 24;
  uint64_t control;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  return (control & kFlushToZero) != 0;
#else
  return false;
#endif
}

/// (at::set_num_threads only where nothing else can: see own_threads.h.)
void set_threads(int threads) {
  if (!has_own_threads()) return at::set_num_threads(threads);
  set_own_threads(threads);
  set_own_mkl_threads(threads);
}

/// Helpers of OpenMP have the setting that the thread had when they were born, so it gets others.
/// (To tell those that it has now is not enough: a kernel that takes fewer leaves some out.)
void set_flush_denormal(bool on) {
  at::globalContext().setFlushDenormal(on);
  openmp_helpers().end_own_team();
}

}  // namespace

ThreadSettings ThreadSettings::of_this_thread() {
  return {at::get_num_threads(), flushes_denormals()};
}

void ThreadSettings::apply() const {
  const ThreadSettings now = of_this_thread();
  if (now == *this) return;
  if (now.num_threads != num_threads) set_threads(num_threads);
  if (now.flush_denormal != flush_denormal) set_flush_denormal(flush_denormal);
}

}  // namespace lazyeng::run
