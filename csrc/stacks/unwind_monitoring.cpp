// csrc/stacks/unwind_monitoring.cpp: the hook of Python 3.12 and later, sys.monitoring.
//
// Both events are those of exceptions, which no instruction is changed for. A tool id is claimed
// while it is needed: one of those without a name of their own, so that debuggers, coverage and
// profilers find theirs free. If none is free, nothing is hidden.
#include <Python.h>

#if PY_VERSION_HEX >= 0x030C0000

#include <utility>

#include "csrc/stacks/saved_error.h"
#include "csrc/stacks/unwind.h"
#include "csrc/stacks/unwind_hook.h"

namespace lazyeng::stacks {
namespace {

constexpr int unnamed_tools[] = {4, 3};
int tool = -1;  // ours; -1: none

// Each is called with (code, offset, exception) in the frame itself.
PyObject* on_left(PyObject*, PyObject* const* args, Py_ssize_t) {
  note_left(PyEval_GetFrame(), args[2]);
  Py_RETURN_NONE;
}

PyObject* on_handled(PyObject*, PyObject* const* args, Py_ssize_t) {
  note_handled(PyEval_GetFrame(), args[2]);
  Py_RETURN_NONE;
}

struct Event {
  const char* name;
  PyMethodDef method;
};

Event event(const char* name, PyObject* (*callback)(PyObject*, PyObject* const*, Py_ssize_t)) {
  const auto function = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(callback));
  return {name, {name, function, METH_FASTCALL, nullptr}};
}

// Callbacks refer to their methods for good.
Event events[] = {event("PY_UNWIND", on_left), event("EXCEPTION_HANDLED", on_handled)};

/// sys.monitoring; borrowed, null if there is none (at exit).
PyObject* monitoring() { return PySys_GetObject("monitoring"); }

/// Bit of an event in sys.monitoring.events; 0 if there is none.
int bit_of(const char* name) {
  PyObject* all = PyObject_GetAttrString(monitoring(), "events");
  PyObject* bit = all ? PyObject_GetAttrString(all, name) : nullptr;
  const long value = bit ? PyLong_AsLong(bit) : 0;
  Py_XDECREF(bit);
  Py_XDECREF(all);
  return static_cast<int>(value);
}

/// Whether the call went well; its result is dropped.
template <class... Args>
bool call(const char* name, const char* format, Args... args) {
  PyObject* result = PyObject_CallMethod(monitoring(), name, format, args...);
  Py_XDECREF(result);
  PyErr_Clear();
  return result != nullptr;
}

/// Sets the callbacks, or takes them away, and asks for the events.
bool listen(int id, bool on) {
  int all = 0;
  for (Event& event : events) {
    const int bit = bit_of(event.name);
    all |= bit;
    PyObject* callback = on ? PyCFunction_New(&event.method, nullptr) : Py_NewRef(Py_None);
    const bool set = callback && call("register_callback", "iiO", id, bit, callback);
    Py_XDECREF(callback);
    if (!set) return false;
  }
  return call("set_events", "ii", id, on ? all : 0);
}

void release(int id) {
  call("set_events", "ii", id, 0);
  listen(id, false);
  call("free_tool_id", "i", id);
}

}  // namespace

bool arm_unwind_hook() {
  if (tool >= 0) return true;
  if (!monitoring()) return false;
  for (const int id : unnamed_tools) {
    if (!call("use_tool_id", "is", id, "lazyeng")) continue;
    if (listen(id, true)) {
      tool = id;
      return true;
    }
    release(id);
  }
  return false;
}

bool unwind_hook_is_armed() { return tool >= 0; }

void disarm_unwind_hook(uint64_t, bool last) {
  if (!last || tool < 0 || !monitoring()) return;
  const SavedError saved;
  release(std::exchange(tool, -1));
}

}  // namespace lazyeng::stacks

#endif
