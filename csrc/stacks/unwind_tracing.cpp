// csrc/stacks/unwind_tracing.cpp: Python 3.11's hook, the trace function of a thread.
//
// What CPython 3.11 does (Python/ceval.c): where an exception comes into a frame, it adds the
// frame's entry and calls `c_tracefunc` if there is one, whatever else is traced. After each such
// call `use_tracing` of the running interpreter loop is set if there is a trace function then, and
// makes it call that at every line. So ours takes itself out while it runs, and comes back when the
// interpreter drops the tuple of its arguments, right after that: it is called for exceptions only,
// and the code that handles them runs at full speed.
//
// Where somebody traces already (a debugger, coverage), a second function stands in front of
// theirs: it looks at exceptions and passes every event on.
//
// Invariants:
// - `c_traceobj` stays what it was: sys.gettrace() tells of others' functions only.
// - A function of ours is installed in a thread only while an exception that the thread raised is
//   watched. One that somebody sets meanwhile takes its place.
// - `use_tracing` is never set because of it, unless somebody profiles (sys.setprofile), who has
//   set it anyway. When that ends first, our next call ends the watch.
// - `others` has a thread exactly as long as `pass_on` is, or was, installed there for the watches
//   that it has.
#include <Python.h>

#if PY_VERSION_HEX < 0x030C0000

#include <unordered_map>

#include "csrc/stacks/unwind.h"
#include "csrc/stacks/unwind_hook.h"

namespace lazyeng::stacks {
namespace {

/// By thread, the function that `pass_on` stands in front of. Never destroyed, as `watches`.
std::unordered_map<uint64_t, Py_tracefunc>& others() {
  static auto* functions = new std::unordered_map<uint64_t, Py_tracefunc>;
  return *functions;
}

int pass_on(PyObject* object, PyFrameObject* frame, int what, PyObject* arguments) {
  const uint64_t id = PyThreadState_GetID(PyThreadState_Get());
  const auto found = others().find(id);
  if (found == others().end()) return 0;
  const Py_tracefunc other = found->second;
  if (what == PyTrace_EXCEPTION)
    note_raised(frame, PyTuple_GET_ITEM(arguments, 1), PyTuple_GET_ITEM(arguments, 2));
  return other(object, frame, what, arguments);
}

int on_event(PyObject*, PyFrameObject* frame, int what, PyObject* arguments);

bool is_ours(Py_tracefunc function) { return function == on_event || function == pass_on; }

void install(PyThreadState* thread) {
  if (is_ours(thread->c_tracefunc)) return;
  if (!thread->c_tracefunc) {
    thread->c_tracefunc = on_event;
  } else {
    others()[PyThreadState_GetID(thread)] = thread->c_tracefunc;
    thread->c_tracefunc = pass_on;
  }
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
  return true;
}

bool unwind_hook_is_armed() { return is_ours(PyThreadState_Get()->c_tracefunc); }

void disarm_unwind_hook(uint64_t id, bool) {
  PyThreadState* thread = PyInterpreterState_ThreadHead(PyInterpreterState_Get());
  while (thread && PyThreadState_GetID(thread) != id) thread = PyThreadState_Next(thread);
  const auto found = others().find(id);
  const Py_tracefunc other = found == others().end() ? nullptr : found->second;
  if (thread && is_ours(thread->c_tracefunc)) thread->c_tracefunc = other;
  if (other) others().erase(found);
}

}  // namespace lazyeng::stacks

#endif
