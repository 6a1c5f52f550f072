// csrc/engine/prefetch.h: memory that another core has had is on its way before it is needed.
//
// What is recorded is made by one thread, and read and dropped by another. A line of a cache takes
// 80 to 240 ns from one core to another, and each thread would wait for one after the other.
#pragma once

#include <cstddef>

namespace lazyeng::engine {

inline constexpr size_t kCacheLineBytes = 64;

/// To be read soon.
inline void prefetch(const void* memory, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kCacheLineBytes)
    __builtin_prefetch(static_cast<const char*>(memory) + at);
}

/// To be written soon: the other core gives the lines up.
inline void prefetch_to_write(void* memory, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kCacheLineBytes) {
    char* const line = static_cast<char*>(memory) + at;
#if defined(__x86_64__)
    // (__builtin_prefetch means it only where the compiler is told that all processors have it.
    // Those of this architecture that have not take it for nothing.)
    asm volatile("prefetchw %0" : : "m"(*line));
#else
    __builtin_prefetch(line, 1);
#endif
  }
}

}  // namespace lazyeng::engine
