// csrc/run/memory/buffers.h: the pool that large memory of engine threads comes from. (Small memory
// comes from lists of blocks, run/memory/small_buffers.h.)
//
// A freed buffer of at least kMinPooled bytes is kept, by size class, for the next request of about
// its size: its pages are there already, while memory fresh from the system costs a page fault
// every 4 KiB, which is most of the time of a large pointwise op. malloc does not keep it: what a
// thread other than the main one frees at the end of its heap goes back to the system.
//
// Fused groups take the memory of their results here, and all that kernels of torch allocate on an
// engine thread comes from here too (run/memory/cpu_allocator.h). What is kept is bounded; when the
// system has no memory left, all of it is given back and the allocation is tried once more.
//
// What a program allocates inside a block comes from here too, if it is large (torch.rand makes
// plain tensors): engine threads free it when they have read it. In malloc's heap small memory,
// which engine threads ask for all the time, would take a part of each such hole, so that the next
// tensor of that size fits in none: the process grew by one tensor a step.
//
// Kept is at most twice of what was in use at a time lately, and 32 MiB. Any thread may free a
// buffer, so the pool's lock is a leaf (record/process/fork.cpp).
#pragma once

#include <c10/core/Allocator.h>

#include <cstdint>

namespace lazyeng::run {

/// Sets the pool up; at most `limit` bytes are kept. Later calls change the bound. (The lists of
/// small memory do not count, but a bound that no buffer fits turns them off: then nothing is
/// kept.)
void install_buffer_pool(uint64_t limit);
/// Memory for a result, from the pool if it is large and one of about its size is kept, or if it is
/// small. The context is the memory itself. Throws as torch's CPU allocator does.
at::DataPtr allocate_buffer(uint64_t nbytes);
/// Who has asked: statistics are those of the engine.
enum class Whose : uint8_t { engine, program };
/// The same, of memory that is_large.
bool is_large(uint64_t nbytes);
at::DataPtr allocate_large_buffer(uint64_t nbytes, Whose whose);
/// Takes memory back that allocate_buffer has lent. False: it is not the pool's.
bool take_back_buffer(void* memory);
/// Whether memory with this deleter is lent by allocate_buffer, if it is not torch's.
bool frees_buffers(c10::DeleterFnPtr deleter);
/// Gives everything that is kept back to the system.
void empty_buffer_pool();

/// Takes and releases the pool's lock around a fork.
void hold_buffers();
void let_go_of_buffers();

struct BufferStats {
  uint64_t kept;  ///< bytes kept for reuse
  uint64_t used;  ///< bytes in use by the engine
  uint64_t peak;  ///< most bytes of these ever in use at a time
};
BufferStats buffer_stats();

}  // namespace lazyeng::run
