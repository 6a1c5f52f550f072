// csrc/run/memory/cpu_allocator.h: torch's CPU allocator, with the buffer pool on engine threads.
//
// Kernels of torch allocate their results, and oneDNN its scratch memory, from the process's CPU
// allocator. On an engine thread, and on a thread of the program while it runs ops of the engine,
// that is the pool (run/memory/buffers.h), and for large memory also inside a block; everywhere
// else torch's own, as before lazyeng was imported, but that the pool gives back what it keeps
// before an allocation fails.
#pragma once

#include <c10/core/Allocator.h>

namespace lazyeng::run {

/// Puts it in the place of torch's, once. If somebody else's is there already, that stays.
void install_cpu_allocator();

/// Whether `allocator` is torch's own CPU allocator or this one.
bool is_usual_cpu_allocator(const c10::Allocator* allocator);

/// What this thread allocates comes from the pool, or not any more. Returns what held before.
bool allocate_from_pool(bool yes);

/// This thread of the program is inside a block, or not any more.
void allocate_in_block(bool inside);

}  // namespace lazyeng::run
