// csrc/stacks/frame_walk.h: reads the calling thread's interpreter frames.
//
// frame_walk.cpp is the only file that knows CPython's private frame layout. Everybody else sees
// sites: one word per frame that names both the code object and the instruction.
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>

namespace lazyeng::stacks {

/// Only this many innermost frames of a deeper stack are captured: enough for any real program, and
/// runaway recursion stays cheap. So much fits on the C stack (4 KiB).
inline constexpr uint32_t max_depth = 512;

/// What one walk found, innermost frame first. Everything is borrowed from the running frames:
/// valid while the GIL is held and no Python code runs.
struct Walk {
  uint32_t depth = 0;
  uint64_t hash = 0;  ///< of the sites; well mixed in its high bits
  /// Addresses inside the code objects: no two instructions of live code objects share one, so
  /// equal sites mean equal (code, instruction) pairs as long as the code objects live.
  uintptr_t sites[max_depth];

  Walk() noexcept {}  // leaves the array uninitialised on purpose: clearing it costs 4 KiB
};

/// Fills `walk` with the calling thread's stack. The GIL must be held. Touches no reference count
/// where the frame layout is known (3.11 to 3.13); uses the public frame API otherwise.
void walk_frames(Walk& walk) noexcept;

/// The code objects of the same frames, borrowed, into room for `walk.depth` of them. A second
/// walk, as only stacks that were not seen before need them.
void walk_codes(const Walk& walk, PyCodeObject** codes) noexcept;

/// Byte offset of the instruction that `site` names, as in `traceback.tb_lasti`.
int last_instruction(PyCodeObject* code, uintptr_t site) noexcept;

}  // namespace lazyeng::stacks
