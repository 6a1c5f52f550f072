// csrc/engine/pause.h: waiting for a moment without going to sleep.
#pragma once

#include <chrono>
#include <thread>

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
/// After the first microseconds it offers its core to others: whom we wait for may need it.
template <class Over>
bool spin_until(Over over, std::chrono::microseconds limit) {
  constexpr auto kKeepCore = std::chrono::microseconds(3);
  const auto start = std::chrono::steady_clock::now();
  for (;;) {
    for (int i = 0; i < 16; ++i) {
      if (over()) return true;
      pause();
    }
    const auto spent = std::chrono::steady_clock::now() - start;
    if (spent >= limit) return over();
    if (spent >= kKeepCore) std::this_thread::yield();
  }
}

}  // namespace lazyeng::engine
