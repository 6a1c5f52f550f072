// csrc/stacks/unwind_hook.h: hears from the interpreter of exceptions that pass through frames.
//
// unwind_tracing.cpp is the hook of Python 3.11, unwind_monitoring.cpp that of later ones; one of
// them is compiled. unwind.cpp decides what is done.
#pragma once

#include <Python.h>

#include <cstdint>

namespace lazyeng::stacks {

// ---- what a hook does

/// Begins to hear of exceptions in the calling thread, at least; true also if it does already.
/// False if that is not possible.
bool arm_unwind_hook();
/// The last watch of the thread (PyThreadState_GetID) has ended; `last`: that of the process.
void disarm_unwind_hook(uint64_t thread, bool last);

// ---- what a hook tells; borrowed references, with no Python error pending

/// `frame` raised `error`, or a call in it did; its entry is the traceback's first. It may handle
/// it. Takes out entries in place: the traceback is on its way, apart from the exception (3.11).
void note_raised(PyFrameObject* frame, PyObject* error, PyObject* traceback);
/// `frame` handles `error`; perhaps only to raise it again (3.12).
void note_handled(PyFrameObject* frame, PyObject* error);
/// `frame` is left because of `error` (3.12).
void note_left(PyFrameObject* frame, PyObject* error);
/// Whether any exception raised in this thread is to be heard of.
bool watches_thread(uint64_t thread);
/// The thread's hook has been lost.
void end_watches_of(uint64_t thread);

}  // namespace lazyeng::stacks
