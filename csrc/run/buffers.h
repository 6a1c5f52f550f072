// csrc/run/buffers.h: the pool that results of the engine's ops take their memory from.
//
// A freed buffer of at least kMinPooled bytes is kept, by size class, for the next result of about
// its size: its pages are there already, while memory fresh from the system costs a page fault
// every 4 KiB, which is most of the time of a large pointwise op. The pool serves engine threads
// only; it stands in for torch's CPU allocator and passes on what is not for it.
//
// Any thread may free a buffer. What is kept is bounded; when the system has no memory left, all
// of it is given back and the allocation is tried once more.
#pragma once

#include <cstdint>

namespace lazyeng::run {

inline constexpr uint64_t kMinPooled = uint64_t{32} << 10;

/// Puts the pool in front of torch's CPU allocator; at most `limit` bytes are kept. Once.
void install_buffer_pool(uint64_t limit);
/// The calling thread's allocations come from the pool from now on.
void use_buffer_pool_on_this_thread();
/// Gives everything that is kept back to the system.
void empty_buffer_pool();

struct BufferStats {
  uint64_t kept;  ///< bytes kept for reuse
  uint64_t used;  ///< bytes in use
  uint64_t peak;  ///< most bytes ever in use at a time
};
BufferStats buffer_stats();

}  // namespace lazyeng::run
