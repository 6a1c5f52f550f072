// csrc/bindings/engine.cpp: functions of lazyeng._C about the engine: its life, its limits, its
// numbers.
#include <torch/csrc/autograd/python_variable.h>

#include "csrc/bindings/bindings.h"
#include "csrc/fuse/group.h"
#include "csrc/fuse/op_table.h"
#include "csrc/fuse/plan.h"
#include "csrc/fuse/step_graph.h"
#include "csrc/fuse/step_plan.h"
#include "csrc/record/accelerator.h"
#include "csrc/record/collectives.h"
#include "csrc/record/first_use.h"
#include "csrc/record/fork.h"
#include "csrc/record/forward_stacks.h"
#include "csrc/record/gate.h"
#include "csrc/record/library.h"
#include "csrc/record/recorder.h"
#include "csrc/record/signals.h"
#include "csrc/record/thread_mode.h"
#include "csrc/run/buffers.h"
#include "csrc/run/caller_modes.h"
#include "csrc/run/cpu_allocator.h"
#include "csrc/run/ignored_warnings.h"
#include "csrc/run/openmp_team.h"
#include "csrc/run/parts.h"
#include "csrc/run/python_ref.h"
#include "csrc/run/width.h"
#include "csrc/run/width_trial.h"

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

PyObject* set_collectives_at_the_call(PyObject*, PyObject* on) {
  const int truth = PyObject_IsTrue(on);
  if (truth < 0) return nullptr;
  record::set_collectives_at_the_call(truth != 0);
  Py_RETURN_NONE;
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

PyObject* set_limits(PyObject*, PyObject* args) {
  unsigned long long ops = 0, bytes = 0;
  if (!PyArg_ParseTuple(args, "KK", &ops, &bytes)) return nullptr;
  current_recorder()->engine().set_limits({ops, bytes});
  Py_RETURN_NONE;
}

PyObject* set_num_workers(PyObject*, PyObject* count) {
  const unsigned long workers = PyLong_AsUnsignedLong(count);
  if (PyErr_Occurred()) return nullptr;
  return guarded([&] {
    const run::NoGil released;
    const record::Gate::Inside inside;
    current_recorder()->engine().set_num_workers(static_cast<unsigned>(workers));
    return Py_NewRef(Py_None);
  });
}

PyObject* num_workers(PyObject*, PyObject*) {
  return PyLong_FromUnsignedLong(current_recorder()->engine().num_workers());
}

PyObject* keep_accelerator(PyObject*, PyObject*) {
  return PyBool_FromLong(record::keep_accelerator());
}

PyObject* set_backing_device(PyObject*, PyObject* name) {
  return guarded([&] {
    record::set_backing_device(c10::Device(PyUnicode_AsUTF8(name)));
    Py_RETURN_NONE;
  });
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
      {"recorded", recorded.recorded + recorded.without_node},
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

PyObject* kernel_settings_changed(PyObject*, PyObject*) {
  run::kernel_settings_changed();
  Py_RETURN_NONE;
}

PyObject* set_warn_always(PyObject*, PyObject* on) {
  run::set_warn_always(on == Py_True);
  Py_RETURN_NONE;
}

PyObject* warns_always(PyObject*, PyObject*) { return PyBool_FromLong(run::warns_always()); }

PyObject* set_trials_bounded(PyObject*, PyObject* arg) {
  const int on = PyObject_IsTrue(arg);
  if (on < 0) return nullptr;
  run::set_trials_bounded(on != 0);
  Py_RETURN_NONE;
}

PyObject* set_always_in_parts(PyObject*, PyObject* arg) {
  const int on = PyObject_IsTrue(arg);
  if (on < 0) return nullptr;
  run::set_always_in_parts(on != 0);
  Py_RETURN_NONE;
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

/// In the main thread, once the function that it has called is back. (What is raised by a hook of a
/// fork is only printed.)
void raise_soon(std::exception_ptr raised) {
  if (!raised) return;
  const auto raise = [](void* held) {
    const std::unique_ptr<std::exception_ptr> error(static_cast<std::exception_ptr*>(held));
    run::translate_to_python(*error);
    return -1;
  };
  auto held = std::make_unique<std::exception_ptr>(std::move(raised));
  if (Py_AddPendingCall(raise, held.get()) == 0) held.release();
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

PyObject* install_buffer_pool(PyObject*, PyObject* limit) {
  const unsigned long long bytes = PyLong_AsUnsignedLongLong(limit);
  if (PyErr_Occurred()) return nullptr;
  run::install_buffer_pool(bytes);
  run::install_cpu_allocator();
  Py_RETURN_NONE;
}

PyObject* empty_buffer_pool(PyObject*, PyObject*) {
  run::empty_buffer_pool();
  Py_RETURN_NONE;
}

PyObject* set_fusion(PyObject*, PyObject* on) {
  current_recorder()->set_fusion(on == Py_True);
  Py_RETURN_NONE;
}

PyObject* set_window_bounds(PyObject*, PyObject* args) {
  unsigned long nodes, microseconds;
  if (!PyArg_ParseTuple(args, "kk", &nodes, &microseconds)) return nullptr;
  current_recorder()->set_window_bounds(nodes, std::chrono::microseconds(microseconds));
  Py_RETURN_NONE;
}

PyObject* set_inexact_fusion(PyObject*, PyObject* on) {
  fuse::set_inexact(on == Py_True);
  Py_RETURN_NONE;
}

PyObject* set_inexact_device_fusion(PyObject*, PyObject* on) {
  fuse::set_inexact_on_devices(on == Py_True);
  Py_RETURN_NONE;
}

PyObject* set_cuda_graphs(PyObject*, PyObject* on) {
  fuse::set_cuda_graphs(on == Py_True);
  Py_RETURN_NONE;
}

PyObject* plan_count(PyObject*, PyObject*) { return PyLong_FromSize_t(fuse::plan_count()); }

PyObject* set_fusion_log(PyObject*, PyObject* on) {
  fuse::set_logging(on == Py_True);
  Py_RETURN_NONE;
}

}  // namespace

PyMethodDef engine_methods[] = {
    {"wait_for_all", wait_for_all, METH_NOARGS, nullptr},
    {"set_collectives_at_the_call", set_collectives_at_the_call, METH_O, nullptr},
    {"flush", flush, METH_NOARGS, nullptr},
    {"wait_for_generators", wait_for_generators, METH_NOARGS, nullptr},
    {"set_limits", set_limits, METH_VARARGS, nullptr},
    {"set_num_workers", set_num_workers, METH_O, nullptr},
    {"num_workers", num_workers, METH_NOARGS, nullptr},
    {"keep_accelerator", keep_accelerator, METH_NOARGS, nullptr},
    {"set_backing_device", set_backing_device, METH_O, nullptr},
    {"stats", stats, METH_NOARGS, nullptr},
    {"microseconds_on_one_core", microseconds_on_one_core, METH_VARARGS, nullptr},
    {"kernel_settings_changed", kernel_settings_changed, METH_NOARGS, nullptr},
    {"set_warn_always", set_warn_always, METH_O, nullptr},
    {"warns_always", warns_always, METH_NOARGS, nullptr},
    {"set_trials_bounded", set_trials_bounded, METH_O, nullptr},
    {"set_always_in_parts", set_always_in_parts, METH_O, nullptr},
    {"stop_engine", stop_engine, METH_NOARGS, nullptr},
    {"start_engine", start_engine, METH_NOARGS, nullptr},
    {"abandon_engine", abandon_engine, METH_O, nullptr},
    {"before_fork", before_fork, METH_NOARGS, nullptr},
    {"after_fork_in_parent", after_fork_in_parent, METH_NOARGS, nullptr},
    {"after_fork_in_child", after_fork_in_child, METH_NOARGS, nullptr},
    {"adopt_ops_with_kernels", adopt_ops_with_kernels, METH_NOARGS, nullptr},
    {"set_replaced", set_replaced, METH_VARARGS, nullptr},
    {"arm_first_use", arm_first_use, METH_NOARGS, nullptr},
    {"install_buffer_pool", install_buffer_pool, METH_O, nullptr},
    {"empty_buffer_pool", empty_buffer_pool, METH_NOARGS, nullptr},
    {"set_fusion", set_fusion, METH_O, nullptr},
    {"set_window_bounds", set_window_bounds, METH_VARARGS, nullptr},
    {"set_inexact_fusion", set_inexact_fusion, METH_O, nullptr},
    {"set_inexact_device_fusion", set_inexact_device_fusion, METH_O, nullptr},
    {"set_cuda_graphs", set_cuda_graphs, METH_O, nullptr},
    {"plan_count", plan_count, METH_NOARGS, nullptr},
    {"set_fusion_log", set_fusion_log, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace lazyeng::bindings
