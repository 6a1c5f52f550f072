// csrc/run/memory/small_buffers.h: the pool that small memory of engine threads comes from.
//
// malloc keeps no aligned memory per thread: each small result costs it a search, a split and, when
// another thread drops the result, a lock and a merge, together as much as a small kernel. Here
// sizes are rounded to a few classes, and each thread has lists of free blocks
// (engine/block_pool.h).
//
// The blocks come one by one from torch's allocator, so that whoever got one by its address alone
// (raw_allocate) may give it back there. Any thread may free one.
#pragma once

#include <c10/core/Allocator.h>

#include <cstdint>

namespace lazyeng::run {

/// Beyond it malloc does well enough beside what a kernel does with as much.
inline constexpr uint64_t kLargestSmallBuffer = 1024;

/// Memory of at least `nbytes`, at most kLargestSmallBuffer and not 0, aligned as torch's. The
/// context is the memory itself. Throws as torch's CPU allocator does.
at::DataPtr allocate_small_buffer(uint64_t nbytes);
/// Whether memory with this deleter is from here.
bool frees_small_buffers(c10::DeleterFnPtr deleter);

/// Takes and releases the lists' locks around a fork.
void hold_small_buffers();
void let_go_of_small_buffers();

}  // namespace lazyeng::run
