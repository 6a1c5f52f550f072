// csrc/stacks/unwind.cpp: the exceptions whose tracebacks are watched, and when that is over.
//
// A Watch ends, and with the last one the hook, when
// - the outermost internal frame has been left: the rule;
// - the exception has died, which a weak reference tells: somebody inside handled it;
// - another exception is heard of, and this one has been handled but is kept (`is_over`).
// Frames are known by address only: to hold them would keep the user's locals alive. A frame object
// lives as long as its frame runs, and an address that is used again can only end a watch early or
// late, as it is never followed.
#include "csrc/stacks/unwind.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "csrc/stacks/internal_code.h"
#include "csrc/stacks/saved_error.h"
#include "csrc/stacks/unwind_hook.h"

namespace lazyeng::stacks {
namespace {

struct Watch {
  PyObject* error;                 ///< borrowed: `death` tells when it is gone
  PyObject* death;                 ///< owned weak reference
  uint64_t thread;                 ///< that raised it
  const PyFrameObject* outermost;  ///< internal frame that it is to pass through; an address
  bool handled = false;            ///< since it was last raised; unknown to Python 3.11
  // Where 3.11 saw it last, and the call that would get it next; addresses.
  const PyFrameObject* at = nullptr;
  const PyFrameObject* caller = nullptr;
  int call = -1;
};

// Never destroyed: a thread may be unwinding when the process exits.
std::vector<Watch>& watches() {
  static auto* list = new std::vector<Watch>;
  return *list;
}

Watch* find(const PyObject* error) {
  for (Watch& watch : watches())
    if (watch.error == error) return &watch;
  return nullptr;
}

uint64_t this_thread() { return PyThreadState_GetID(PyThreadState_Get()); }

/// Ends the watches that `matches`. Any call of it, and the end of each, may run Python code that
/// begins and ends others.
template <class Matches>
void end_if(Matches matches) {
  const std::vector<Watch> before = watches();
  for (const Watch& watch : before) {
    if (!matches(watch)) continue;
    const auto found = std::find_if(watches().begin(), watches().end(),
                                    [&](const Watch& other) { return other.death == watch.death; });
    if (found == watches().end()) continue;
    watches().erase(found);
    if (!watches_thread(watch.thread)) disarm_unwind_hook(watch.thread, watches().empty());
    Py_DECREF(watch.death);
  }
}

void end(const PyObject* error) {
  end_if([&](const Watch& watch) { return watch.error == error; });
}

// ---- when it is over

PyObject* died(PyObject*, PyObject* death) {
  const SavedError saved;
  end_if([&](const Watch& watch) { return watch.death == death; });
  Py_RETURN_NONE;
}

PyObject* death_callback() {
  static PyMethodDef method = {"died", died, METH_O, nullptr};
  static PyObject* const callback = PyCFunction_New(&method, nullptr);
  return callback;
}

/// Calls `visit(frame)` for `frame` and those around it until that is false.
template <class Visit>
void each_frame(PyFrameObject* frame, Visit visit) {
  Py_XINCREF(frame);
  while (frame && visit(frame)) Py_SETREF(frame, PyFrame_GetBack(frame));
  Py_XDECREF(frame);
}

/// Last instruction of `outer`, if that is `frame` or around it; -1 if it is not.
int instruction_of(const PyFrameObject* outer, PyFrameObject* frame) {
  int instruction = -1;
  each_frame(frame, [&](PyFrameObject* at) {
    if (at == outer) instruction = PyFrame_GetLasti(at);
    return at != outer;
  });
  return instruction;
}

bool is_around(const PyFrameObject* outer, PyFrameObject* frame) {
  return outer && instruction_of(outer, frame) >= 0;
}

/// Whether some frame of this thread handles the error now. The interpreter keeps the innermost one
/// that is handled; those around it are the contexts of what was raised meanwhile.
bool is_being_handled(const PyObject* error) {
  constexpr int most_contexts = 1000;  // (they may be a circle)
  for (const _PyErr_StackItem* item = PyThreadState_Get()->exc_info; item;
       item = item->previous_item) {
    PyObject* at = item->exc_value;
    for (int i = 0; at && at != error && PyExceptionInstance_Check(at) && i < most_contexts; ++i)
      at = reinterpret_cast<PyBaseExceptionObject*>(at)->context;
    if (at == error) return true;
  }
  return false;
}

/// Another exception was raised in `frame`, and nothing is heard of this one. It has been handled
/// if the frame that had it goes on, or the one around that. Else it may be on its way still:
/// destructors of what it leaves behind may raise.
bool is_over(const Watch& watch, PyFrameObject* frame) {
  if (is_being_handled(watch.error)) return false;
  if (watch.handled || is_around(watch.at, frame)) return true;
  const int call = instruction_of(watch.caller, frame);
  return (call >= 0 && call != watch.call) || !is_around(watch.outermost, frame);
}

bool is_alive(uint64_t thread) {
  PyThreadState* state = PyInterpreterState_ThreadHead(PyInterpreterState_Get());
  while (state && PyThreadState_GetID(state) != thread) state = PyThreadState_Next(state);
  return state != nullptr;
}

void note_other(PyFrameObject* frame) {
  const uint64_t here = this_thread();
  end_if([&](const Watch& watch) {  // (a thread can be gone, and is after a fork)
    return watch.thread == here ? is_over(watch, frame) : !is_alive(watch.thread);
  });
}

// ---- tracebacks

bool is_internal_entry(const PyTracebackObject* entry) {
  PyCodeObject* code = PyFrame_GetCode(entry->tb_frame);
  const bool internal = is_internal(code);
  Py_DECREF(code);
  return internal;
}

/// The entry becomes what the next one is. Dropping a frame may run Python code.
void become_next(PyTracebackObject* entry) {
  PyTracebackObject* next = entry->tb_next;
  PyFrameObject* frame =
      std::exchange(entry->tb_frame, reinterpret_cast<PyFrameObject*>(Py_NewRef(next->tb_frame)));
  entry->tb_lasti = next->tb_lasti;
  entry->tb_lineno = next->tb_lineno;
  entry->tb_next = reinterpret_cast<PyTracebackObject*>(Py_XNewRef(next->tb_next));
  Py_DECREF(next);
  Py_DECREF(frame);
}

void unlink_next(PyTracebackObject* entry) {
  PyTracebackObject* next = entry->tb_next;
  entry->tb_next = reinterpret_cast<PyTracebackObject*>(Py_XNewRef(next->tb_next));
  Py_DECREF(next);
}

/// Takes out internal entries at the front, in place; one stays if there are no others. What is
/// behind the first user's entry has been through here already.
void prune(PyTracebackObject* first) {
  while (first->tb_next && is_internal_entry(first)) become_next(first);
  while (first->tb_next && is_internal_entry(first->tb_next)) unlink_next(first);
}

void drop_internal_front(PyObject* error) {
  PyObject* traceback = PyException_GetTraceback(error);
  const PyObject* before = traceback;
  while (traceback) {
    auto* entry = reinterpret_cast<PyTracebackObject*>(traceback);
    if (!is_internal_entry(entry)) break;
    Py_SETREF(traceback, Py_XNewRef(entry->tb_next));
  }
  if (traceback != before) PyException_SetTraceback(error, traceback ? traceback : Py_None);
  Py_XDECREF(traceback);
}

/// An address; null if no internal frame is around those of ours that are raising.
const PyFrameObject* outermost_internal_frame() {
  const PyFrameObject* found = nullptr;
  bool raising = true;
  PyFrameObject* innermost = PyThreadState_GetFrame(PyThreadState_Get());
  each_frame(innermost, [&](PyFrameObject* frame) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    raising = raising && is_own(code);
    if (!raising && is_internal(code)) found = frame;
    Py_DECREF(code);
    return true;
  });
  Py_XDECREF(innermost);
  return found;
}

}  // namespace

void hide_while_unwinding(PyObject* error, PyObject* companion) {
  const SavedError saved;
  const PyFrameObject* outermost = outermost_internal_frame();
  if (!outermost) return;
  PyObject* death = PyWeakref_NewRef(companion, death_callback());
  if (!death) return PyErr_Clear();
  watches().push_back({error, death, this_thread(), outermost});
  // raised once more, or seen by another of our functions on its way
  end_if([&](const Watch& other) { return other.error == error && other.death != death; });
  if (!arm_unwind_hook()) end(error);
}

void note_raised(PyFrameObject* frame, PyObject* error, PyObject* traceback) {
  if (!find(error)) return note_other(frame);
  const Watch before = *find(error);
  const bool left = before.at == before.outermost && !is_around(before.outermost, frame);
  PyFrameObject* caller = PyFrame_GetBack(frame);
  const int call = caller ? PyFrame_GetLasti(caller) : -1;
  Watch& watch = *find(error);  // (a new frame object may have brought a collection of garbage)
  watch.at = frame;
  watch.caller = caller;
  watch.call = call;
  Py_XDECREF(caller);
  if (PyTraceBack_Check(traceback)) prune(reinterpret_cast<PyTracebackObject*>(traceback));
  if (left || (frame == before.outermost && !caller)) end(error);
}

void note_handled(PyFrameObject* frame, PyObject* error) {
  if (Watch* watch = find(error))
    watch->handled = true;
  else
    note_other(frame);
}

void note_left(PyFrameObject* frame, PyObject* error) {
  Watch* watch = find(error);
  if (!watch) return note_other(frame);
  watch->handled = false;
  const bool last = watch->outermost == frame;
  drop_internal_front(error);
  if (last) end(error);
}

bool watches_thread(uint64_t thread) {
  return std::any_of(watches().begin(), watches().end(),
                     [&](const Watch& watch) { return watch.thread == thread; });
}

void end_watches_of(uint64_t thread) {
  end_if([&](const Watch& watch) { return watch.thread == thread; });
}

}  // namespace lazyeng::stacks
