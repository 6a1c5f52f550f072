// csrc/stacks/stub_frame.h: frames for synthetic tracebacks (lazyeng/_traceback.py).
#pragma once

#include <Python.h>

namespace lazyeng::stacks {

/// New reference: a frame of `code` with these globals (a dict) that never ran and never will. It
/// has no f_back and no locals, so it keeps nothing else alive. The GIL must be held. Null with a
/// Python error set on failure.
PyObject* new_stub_frame(PyCodeObject* code, PyObject* globals);

}  // namespace lazyeng::stacks
