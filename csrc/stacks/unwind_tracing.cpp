// csrc/stacks/unwind_tracing.cpp: Python 3.11's hook, the trace function of a thread.
//
// What CPython 3.11 does (Python/ceval.c): where an exception comes into a frame, it adds the
// frame's entry and calls `c_tracefunc` if there is one, whatever else is traced. After each such
// call `use_tracing` of the running interpreter loop is set if there is a trace function then, and
// makes it call that at every line. So ours takes itself out while it runs, and comes back when the
// interpreter drops the tuple of its arguments, right after that: it is called for exceptions only,
// and the code that handles them runs at full speed.
//
// Invariants:
// - `c_traceobj` stays null: sys.gettrace() is None.
// - It is installed in a thread only while an exception that the thread raised is watched, and only
//   where there was no trace function: a debugger's, or that of coverage, stays. One that is set
//   meanwhile takes our place.
// - `use_tracing` is never set because of it, unless somebody profiles (sys.setprofile), who has
// set
//   it anyway. When that ends first, our next call ends the watch.
#include <Python.h>

#if PY_VERSION_HEX < 0x030C0000

#include "csrc/stacks/unwind.h"
#include "csrc/stacks/unwind_hook.h"

namespace lazyeng::stacks {
namespace {

int on_event(PyObject*, PyFrameObject* frame, int what, PyObject* arguments);

void install(PyThreadState* thread) {
  if (!thread->c_tracefunc) thread->c_tracefunc = on_event;
}

void install_again(PyObject*) {
  PyThreadState* thread = PyThreadState_Get();
  if (watches_thread(PyThreadState_GetID(thread))) install(thread);
}

/// Installs it again when the tuple is dropped. False if it cannot.
bool install_with_the_death_of(PyObject* arguments) {
  if (!PyTuple_CheckExact(arguments) || Py_REFCNT(arguments) != 1) return false;
  static char anything;
  PyObject* last = PyCapsule_New(&anything, nullptr, install_again);
  if (!last) {
    PyErr_Clear();
    return false;
  }
  PyObject* type = PyTuple_GET_ITEM(arguments, 0);  // which the interpreter holds elsewhere too
  PyTuple_SET_ITEM(arguments, 0, last);
  Py_DECREF(type);
  return true;
}

int on_event(PyObject*, PyFrameObject* frame, int what, PyObject* arguments) {
  PyThreadState* thread = PyThreadState_Get();
  const uint64_t id = PyThreadState_GetID(thread);
  if (what != PyTrace_EXCEPTION) {
    if (!thread->c_profilefunc) end_watches_of(id);
    return 0;
  }
  thread->c_tracefunc = nullptr;
  note_raised(frame, PyTuple_GET_ITEM(arguments, 1), PyTuple_GET_ITEM(arguments, 2));
  if (watches_thread(id) && !install_with_the_death_of(arguments)) end_watches_of(id);
  return 0;
}

}  // namespace

bool arm_unwind_hook() {
  PyThreadState* thread = PyThreadState_Get();
  if (thread->tracing) return false;  // in a trace function: nothing here would be heard of
  install(thread);
  return thread->c_tracefunc == on_event;
}

bool unwind_hook_is_armed() { return PyThreadState_Get()->c_tracefunc == on_event; }

void disarm_unwind_hook(uint64_t id, bool) {
  PyThreadState* thread = PyInterpreterState_ThreadHead(PyInterpreterState_Get());
  while (thread && PyThreadState_GetID(thread) != id) thread = PyThreadState_Next(thread);
  if (thread && thread->c_tracefunc == on_event) thread->c_tracefunc = nullptr;
}

}  // namespace lazyeng::stacks

#endif
