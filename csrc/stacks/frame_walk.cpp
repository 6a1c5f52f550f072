// csrc/stacks/frame_walk.cpp: the interpreter frames of CPython 3.11, 3.12 and 3.13.
//
// Other versions, and builds with -DLAZYENG_PUBLIC_FRAMES, use the public frame API (ten times
// slower): a new CPython works at once and is made fast here.
#define PY_SSIZE_T_CLEAN
#include <patchlevel.h>

#if !defined(LAZYENG_PUBLIC_FRAMES) && PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030E0000
#define LAZYENG_PRIVATE_FRAMES 1
#define Py_BUILD_CORE 1  // must precede Python.h
#endif

#include "csrc/stacks/frame_walk.h"

#ifdef LAZYENG_PRIVATE_FRAMES
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpragmas"
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#pragma GCC diagnostic ignored "-Wsign-compare"
#include <internal/pycore_frame.h>
#pragma GCC diagnostic pop
#endif

#ifdef Py_GIL_DISABLED
#error "lazyeng::stacks relies on the GIL: free-threaded CPython is not supported"
#endif

namespace lazyeng::stacks {
namespace {

// Polynomial hash: one multiply per frame, hidden behind the load of the next frame. The high bits
// depend on every site, the low ones do not, so the table takes its bucket from the high bits.
inline uint64_t mix(uint64_t hash, uintptr_t site) noexcept {
  return (hash + site) * 0x9E3779B97F4A7C15ull;
}

#ifdef LAZYENG_PRIVATE_FRAMES

inline _PyInterpreterFrame* innermost_frame() noexcept {
#if PY_VERSION_HEX >= 0x030D0000
  return PyThreadState_Get()->current_frame;
#else
  return PyThreadState_Get()->cframe->current_frame;
#endif
}

// Since 3.12 every entry of the C interpreter loop has a frame of its own, without Python code.
inline bool is_python_frame(const _PyInterpreterFrame* frame) noexcept {
#if PY_VERSION_HEX >= 0x030C0000
  return frame->owner != FRAME_OWNED_BY_CSTACK;
#else
  (void)frame;
  return true;
#endif
}

inline PyCodeObject* code_of(const _PyInterpreterFrame* frame) noexcept {
#if PY_VERSION_HEX >= 0x030D0000
  return reinterpret_cast<PyCodeObject*>(frame->f_executable);
#else
  return frame->f_code;
#endif
}

inline uintptr_t instruction_of(const _PyInterpreterFrame* frame) noexcept {
#if PY_VERSION_HEX >= 0x030D0000
  return reinterpret_cast<uintptr_t>(frame->instr_ptr);
#else
  return reinterpret_cast<uintptr_t>(frame->prev_instr);
#endif
}

// In these versions the bytecode is part of the code object, so an instruction's address is a site.
inline uintptr_t first_instruction(PyCodeObject* code) noexcept {
  return reinterpret_cast<uintptr_t>(_PyCode_CODE(code));
}

// Only the innermost frame can be one that was pushed and has not begun to run.
inline _PyInterpreterFrame* innermost_running_frame() noexcept {
  auto* frame = innermost_frame();
  const bool begun = !frame || !is_python_frame(frame) ||
                     instruction_of(frame) >= first_instruction(code_of(frame));
  return begun ? frame : frame->previous;
}

#endif
}  // namespace

#ifdef LAZYENG_PRIVATE_FRAMES

void walk_frames(Walk& walk) noexcept {
  uint32_t depth = 0;
  uint64_t hash = 0;
  auto* frame = innermost_running_frame();
  for (; frame && depth < max_depth; frame = frame->previous) {
    if (!is_python_frame(frame)) continue;
    const uintptr_t site = walk.sites[depth++] = instruction_of(frame);
    hash = mix(hash, site);
  }
  walk.depth = depth;
  walk.hash = hash;
}

void walk_codes(const Walk& walk, PyCodeObject** codes) noexcept {
  auto* frame = innermost_running_frame();
  for (uint32_t i = 0; i < walk.depth; frame = frame->previous)
    if (is_python_frame(frame)) codes[i++] = code_of(frame);
}

int last_instruction(PyCodeObject* code, uintptr_t site) noexcept {
  return static_cast<int>(site - first_instruction(code));
}

#else

namespace {

/// Calls `visit(code, offset)` for each frame until that is false; the code is borrowed.
template <class Visit>
void each_frame(Visit visit) noexcept {
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  for (bool more = true; frame && more;) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    const int offset = PyFrame_GetLasti(frame);
    if (offset >= 0) more = visit(code, offset);
    Py_DECREF(code);  // the running frame keeps it alive
    PyFrameObject* outer = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = outer;
  }
  Py_XDECREF(frame);
}

}  // namespace

void walk_frames(Walk& walk) noexcept {
  each_frame([&](PyCodeObject* code, int offset) {
    // A code object is larger than its bytecode, so base + offset lies inside it: a site.
    const uintptr_t site = reinterpret_cast<uintptr_t>(code) + offset;
    walk.sites[walk.depth++] = site;
    walk.hash = mix(walk.hash, site);
    return walk.depth < max_depth;
  });
}

void walk_codes(const Walk& walk, PyCodeObject** codes) noexcept {
  uint32_t depth = 0;
  each_frame([&](PyCodeObject* code, int) {
    codes[depth++] = code;
    return depth < walk.depth;
  });
}

int last_instruction(PyCodeObject* code, uintptr_t site) noexcept {
  return static_cast<int>(site - reinterpret_cast<uintptr_t>(code));
}

#endif

}  // namespace lazyeng::stacks
