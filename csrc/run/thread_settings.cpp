// csrc/run/thread_settings.cpp: reading and writing them on the calling thread.
#include "csrc/run/thread_settings.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>

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

}  // namespace

ThreadSettings ThreadSettings::of_this_thread() {
  return {at::get_num_threads(), flushes_denormals()};
}

void ThreadSettings::apply() const {
  const ThreadSettings now = of_this_thread();
  if (now == *this) return;
  if (now.num_threads != num_threads) at::set_num_threads(num_threads);
  if (now.flush_denormal != flush_denormal) at::globalContext().setFlushDenormal(flush_denormal);
}

}  // namespace lazyeng::run
