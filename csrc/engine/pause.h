// csrc/engine/pause.h: waiting for a moment without going to sleep.
#pragma once

#include <chrono>

namespace lazyeng::engine {

/// Tells the processor that this is a spin loop.
inline void pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Spins until over() or for `limit`, whichever is first. Returns over().
/// For microseconds only, since whom we wait for may need the core. (Yielding it is no way out:
/// Linux makes a thread that yields wait a whole time slice, of milliseconds, if others keep
/// running.)
template <class Over>
bool spin_until(Over over, std::chrono::microseconds limit) {
  const auto start = std::chrono::steady_clock::now();
  for (;;) {
    for (int i = 0; i < 16; ++i) {
      if (over()) return true;
      pause();
    }
    if (std::chrono::steady_clock::now() - start >= limit) return over();
  }
}

}  // namespace lazyeng::engine
