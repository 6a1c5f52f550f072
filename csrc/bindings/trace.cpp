// csrc/bindings/trace.cpp: functions of lazyeng._C about the trace that lazyeng.profile makes.
#include "csrc/run/traces/trace.h"

#include "csrc/bindings/bindings.h"
#include "csrc/record/process/gate.h"
#include "csrc/record/sync_debug.h"
#include "csrc/run/python_ref.h"
#include "csrc/run/traces/torch_profiler.h"

namespace lazyeng::bindings {
namespace {

using run::PyRef;
using run::TraceEvent;

const char* kind_name(TraceEvent::Kind kind) {
  switch (kind) {
    case TraceEvent::Kind::record:
      return "record";
    case TraceEvent::Kind::run:
      return "run";
    case TraceEvent::Kind::device:
      return "device";
    default:
      return "group";
  }
}

/// Cycles cannot go through it: so the collector need not look at each of some hundred thousand,
/// several times.
PyObject* leaf(PyObject* container) {
  if (container) PyObject_GC_UnTrack(container);
  return container;
}

/// [(name of the op, number of its node)]
PyObject* members_of(const TraceEvent& event) {
  PyRef list(PyList_New(0));
  for (const TraceEvent::Member& member : event.members) {
    PyRef item(leaf(Py_BuildValue("sK", member.op->name.c_str(),
                                  static_cast<unsigned long long>(member.number))));
    if (!item || PyList_Append(list.get(), item.get()) != 0) return nullptr;
  }
  return leaf(list.release());
}

/// (kind, op, number, begin, end, bytes, failed, line, members)
PyObject* to_python(const TraceEvent& event) {
  const std::string line = stacks::innermost_user_line(event.stack);
  PyRef members(members_of(event));
  if (!members) return nullptr;
  return leaf(Py_BuildValue(
      "ssKLLKOsN", kind_name(event.kind), event.op ? event.op->name.c_str() : "",
      static_cast<unsigned long long>(event.number), static_cast<long long>(event.begin),
      static_cast<long long>(event.end), static_cast<unsigned long long>(event.bytes),
      event.failed ? Py_True : Py_False, line.c_str(), members.release()));
}

PyObject* start_trace(PyObject*, PyObject*) {
  const bool started = run::start_trace();
  if (started) record::set_all_waits_reported(true);
  return PyBool_FromLong(started);
}

/// [(thread, its name, [event])]
PyObject* take_trace() {
  record::set_all_waits_reported(false);
  PyRef threads(PyList_New(0));
  if (!threads || record::Gate::is_lost()) return threads.release();
  std::vector<run::ThreadTrace> logs;
  {
    const run::NoGil released;  // (it waits for devices)
    const record::Gate::Inside inside;
    logs = run::stop_trace();
  }
  for (const run::ThreadTrace& log : logs) {
    PyRef events(PyList_New(0));
    for (const TraceEvent& event : log.events) {
      PyRef item(to_python(event));
      if (!item || PyList_Append(events.get(), item.get()) != 0) return nullptr;
    }
    PyRef thread(Py_BuildValue("LsN", static_cast<long long>(log.thread), log.name.c_str(),
                               events.release()));
    if (!thread || PyList_Append(threads.get(), thread.get()) != 0) return nullptr;
  }
  return threads.release();
}

PyObject* stop_trace(PyObject*, PyObject*) { return guarded(&take_trace); }

PyObject* let_threads_join_profile(PyObject*, PyObject*) {
  {
    const run::NoGil released;
    run::let_threads_join_profile();
  }
  Py_RETURN_NONE;
}

PyObject* keep_threads_out_of_profile(PyObject*, PyObject*) {
  {
    const run::NoGil released;
    run::keep_threads_out_of_profile();
  }
  Py_RETURN_NONE;
}

}  // namespace

PyMethodDef trace_methods[] = {
    {"let_threads_join_profile", let_threads_join_profile, METH_NOARGS, nullptr},
    {"keep_threads_out_of_profile", keep_threads_out_of_profile, METH_NOARGS, nullptr},
    {"start_trace", start_trace, METH_NOARGS, nullptr},
    {"stop_trace", stop_trace, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace lazyeng::bindings
