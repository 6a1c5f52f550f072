// csrc/stacks/unwind.h: takes internal frames out of the traceback of an exception on its way out.
//
// An exception gets one entry of its traceback from each frame that it leaves, after the code that
// raised it has run. So from the raise until the outermost internal frame is left, a hook of the
// interpreter (unwind_hook.h) hears of exceptions, and takes out the entries of internal frames.
//
// All of it belongs to the holder of the GIL.
#pragma once

#include <Python.h>

namespace lazyeng::stacks {

/// `error` is being raised in this thread, or will be a moment from now: its traceback gets no
/// entries of the internal frames around it. Installs nothing if there are none, besides lazyeng's
/// own innermost ones, or if the interpreter has no hook to spare. `companion` dies with the error
/// (it may be the error) and can have weak references. Keeps the pending Python error.
void hide_while_unwinding(PyObject* error, PyObject* companion);

/// Whether the hook is in this thread (3.11), or in the process (3.12). For tests.
bool unwind_hook_is_armed();

}  // namespace lazyeng::stacks
