// csrc/bindings/engine.cpp: functions of lazyeng._C about the engine: its life and its numbers.
#include <torch/csrc/autograd/python_variable.h>

#include "csrc/bindings/bindings.h"
#include "csrc/fuse/graphs/step_graph.h"
#include "csrc/fuse/group.h"
#include "csrc/fuse/plan.h"
#include "csrc/fuse/step_plan.h"
#include "csrc/record/device/accelerator.h"
#include "csrc/record/forward_stacks.h"
#include "csrc/record/library.h"
#include "csrc/record/process/first_use.h"
#include "csrc/record/process/fork.h"
#include "csrc/record/process/gate.h"
#include "csrc/record/process/signals.h"
#include "csrc/record/recorder.h"
#include "csrc/record/thread_mode.h"
#include "csrc/run/caller/caller_modes.h"
#include "csrc/run/cores/openmp_team.h"
#include "csrc/run/cores/parts.h"
#include "csrc/run/cores/width.h"
#include "csrc/run/memory/buffers.h"
#include "csrc/run/python_ref.h"

namespace lazyeng::bindings {
namespace {

using record::current_recorder;
using run::PyRef;

PyObject* wait_for_all(PyObject*, PyObject*) {
  return guarded([&] {
    current_recorder()->wait_for_all();
    Py_RETURN_NONE;
  });
}

PyObject* flush(PyObject*, PyObject*) {
  return guarded([&] {
    const run::NoGil released;
    const record::Gate::Inside inside;
    current_recorder()->flush();
    return Py_NewRef(Py_None);
  });
}

PyObject* wait_for_generators(PyObject*, PyObject*) {
  return guarded([&] {
    if (current_recorder()) current_recorder()->wait_for_generators();
    Py_RETURN_NONE;
  });
}

PyObject* keep_accelerator(PyObject*, PyObject*) {
  return PyBool_FromLong(record::keep_accelerator());
}

PyObject* stats(PyObject*, PyObject*) {
  record::Recorder& recorder = *current_recorder();
  record::forget_dead_forward_stacks();
  stacks::collect(/*kept=*/32);
  const engine::Counters counters = recorder.engine().counters();
  const record::RecordCounters& recorded = recorder.counters();
  using ull = unsigned long long;
  const fuse::Stats& fused = fuse::stats();
  const fuse::GraphStats& graphs = fuse::graph_stats();
  const ull groups = fused.groups;
  const ull executed = counters.executed + recorded.at_once;
  const run::BufferStats buffers = run::buffer_stats();
  const std::pair<const char*, ull> numbers[] = {
      {"recorded", recorder.window().recorded() + recorded.without_node},
      {"executed", executed},
      {"groups", groups},
      {"hand_written", fused.by_hand},
      {"replayed", fuse::replayed_nodes()},
      {"launches", executed + groups - fused.members + graphs.launches - graphs.nodes},
      {"graph_launches", graphs.launches},
      {"on_one_core", run::ops_on_one_core()},
      {"in_parts", run::ops_in_parts()},
      {"crowded", run::openmp_helpers().times_crowded()},
      {"plans", recorded.plans},
      {"syncs", recorded.syncs},
      {"fallbacks", recorded.fallbacks},
      {"pending_ops", counters.pending_ops},
      {"pending_bytes", counters.pending_bytes},
      {"pool_bytes", buffers.kept},
      {"peak_bytes", buffers.peak},
      {"graph_bytes", graphs.bytes},
      {"stack_table_entries", stacks::table_size()},
  };
  PyRef dict(PyDict_New());
  for (const auto& [name, number] : numbers) {
    PyRef value(PyLong_FromUnsignedLongLong(number));
    if (!dict || !value || PyDict_SetItemString(dict.get(), name, value.get())) return nullptr;
  }
  return dict.release();
}

PyObject* microseconds_on_one_core(PyObject*, PyObject* args) {
  const char *name = nullptr, *overload = nullptr;
  PyObject* list = nullptr;
  Py_ssize_t num_args = 0;
  if (!PyArg_ParseTuple(args, "ssO!n", &name, &overload, &PyList_Type, &list, &num_args))
    return nullptr;
  return guarded([&]() -> PyObject* {
    std::vector<run::GeometryRef> looks;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
      PyObject* const tensor = PyList_GET_ITEM(list, i);
      TORCH_CHECK_TYPE(THPVariable_Check(tensor), "expected tensors, got ",
                       Py_TYPE(tensor)->tp_name);
      looks.push_back(run::geometry_of(THPVariable_Unpack(tensor)));
    }
    TORCH_CHECK_VALUE(num_args >= 0 && num_args < PyList_GET_SIZE(list),
                      "expected arguments, then results, got ", num_args, " arguments of ",
                      PyList_GET_SIZE(list), " tensors");
    const auto& info =
        record::info_of(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload));
    run::leave_out_table(info, looks);
    return PyFloat_FromDouble(
        run::microseconds_on_one_core(info, looks, static_cast<size_t>(num_args)));
  });
}

PyObject* stop_engine(PyObject*, PyObject*) {
  return guarded([&] {
    if (record::Recorder* recorder = current_recorder()) {
      record::record_in_sync_only();
      std::exception_ptr raised;
      {
        const run::NoGil released;
        const record::Gate::Inside inside;
        recorder->stop_threads();
        recorder->flush();
        recorder->engine().stop([&] { return (raised = record::raised_by_signal()) != nullptr; });
      }
      if (raised) std::rethrow_exception(raised);
    }
    return Py_NewRef(Py_None);
  });
}

PyObject* abandon_engine(PyObject*, PyObject* patience) {
  const double seconds = PyFloat_AsDouble(patience);
  if (PyErr_Occurred()) return nullptr;
  return guarded([&] {
    using std::chrono::steady_clock;
    const auto until = steady_clock::now() + std::chrono::duration<double>(seconds);
    run::InCustomKernel::interrupt_all();
    const run::NoGil released;
    const record::Gate::Inside inside;
    const engine::WaitResult over =
        current_recorder()->engine().abandon([&] { return steady_clock::now() > until; });
    return Py_NewRef(over == engine::WaitResult::done ? Py_True : Py_False);
  });
}

PyObject* start_engine(PyObject*, PyObject*) {
  return guarded([&] {
    if (record::Recorder* recorder = current_recorder()) {
      recorder->engine().start();
      recorder->start_threads();
    }
    return Py_NewRef(Py_None);
  });
}

PyObject* before_fork(PyObject*, PyObject*) {
  return guarded([&] {
    record::before_fork(*current_recorder());
    return Py_NewRef(Py_None);
  });
}

using FrameRef = std::unique_ptr<PyFrameObject, decltype([](PyFrameObject* f) { Py_DECREF(f); })>;

FrameRef current_frame() { return FrameRef(PyThreadState_GetFrame(PyThreadState_Get())); }

struct RaisedByFork {
  std::exception_ptr error;
  FrameRef caller;  ///< of os.fork(), which holds it

  /// Python code runs before os.fork() returns: other hooks, the warning of Python 3.12 that there
  /// are threads. What it raises is printed, or dropped.
  bool fork_has_returned() const {
    FrameRef frame = current_frame();
    if (frame == caller) return true;
    while (frame && frame != caller) frame.reset(PyFrame_GetBack(frame.get()));
    return !frame;
  }
};

/// A pending call of Python's.
int raise_after_fork(void* held) {
  std::unique_ptr<RaisedByFork> raised(static_cast<RaisedByFork*>(held));
  if (!raised->fork_has_returned() && Py_AddPendingCall(raise_after_fork, raised.get()) == 0) {
    raised.release();
    return 0;
  }
  run::translate_to_python(raised->error);
  return -1;
}

/// In the main thread, once os.fork() is back.
void raise_soon(std::exception_ptr error) {
  if (!error) return;
  auto raised = std::make_unique<RaisedByFork>(std::move(error), current_frame());
  if (Py_AddPendingCall(raise_after_fork, raised.get()) == 0) raised.release();
}

PyObject* after_fork_in_parent(PyObject*, PyObject*) {
  return guarded([&] {
    raise_soon(record::after_fork_in_parent(*current_recorder()));
    return Py_NewRef(Py_None);
  });
}

PyObject* after_fork_in_child(PyObject*, PyObject*) {
  return guarded([&] { return PyBool_FromLong(record::after_fork_in_child(*current_recorder())); });
}

PyObject* adopt_ops_with_kernels(PyObject*, PyObject*) {
  return guarded([&] {
    record::adopt_ops_with_kernels();
    Py_RETURN_NONE;
  });
}

PyObject* take_back_kernels(PyObject*, PyObject* name) {
  const char* const text = PyUnicode_AsUTF8(name);
  if (!text) return nullptr;
  return guarded([&] {
    record::take_back_kernels(text);
    Py_RETURN_NONE;
  });
}

/// set_replaced(name, overload, replaced); False: there is no such op.
PyObject* set_replaced(PyObject*, PyObject* args) {
  const char *name = nullptr, *overload = nullptr;
  int replaced = 0;
  if (!PyArg_ParseTuple(args, "ssp", &name, &overload, &replaced)) return nullptr;
  return guarded([&] {
    const auto op = c10::Dispatcher::singleton().findSchema({name, overload});
    if (op) record::set_replaced(*op, replaced != 0);
    return PyBool_FromLong(op.has_value());
  });
}

PyObject* arm_first_use(PyObject*, PyObject*) {
  record::arm_first_use();
  Py_RETURN_NONE;
}

PyObject* plan_count(PyObject*, PyObject*) { return PyLong_FromSize_t(fuse::plan_count()); }

}  // namespace

PyMethodDef engine_methods[] = {
    {"wait_for_all", wait_for_all, METH_NOARGS, nullptr},
    {"flush", flush, METH_NOARGS, nullptr},
    {"wait_for_generators", wait_for_generators, METH_NOARGS, nullptr},
    {"keep_accelerator", keep_accelerator, METH_NOARGS, nullptr},
    {"stats", stats, METH_NOARGS, nullptr},
    {"microseconds_on_one_core", microseconds_on_one_core, METH_VARARGS, nullptr},
    {"stop_engine", stop_engine, METH_NOARGS, nullptr},
    {"start_engine", start_engine, METH_NOARGS, nullptr},
    {"abandon_engine", abandon_engine, METH_O, nullptr},
    {"before_fork", before_fork, METH_NOARGS, nullptr},
    {"after_fork_in_parent", after_fork_in_parent, METH_NOARGS, nullptr},
    {"after_fork_in_child", after_fork_in_child, METH_NOARGS, nullptr},
    {"adopt_ops_with_kernels", adopt_ops_with_kernels, METH_NOARGS, nullptr},
    {"take_back_kernels", take_back_kernels, METH_O, nullptr},
    {"set_replaced", set_replaced, METH_VARARGS, nullptr},
    {"arm_first_use", arm_first_use, METH_NOARGS, nullptr},
    {"plan_count", plan_count, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace lazyeng::bindings
