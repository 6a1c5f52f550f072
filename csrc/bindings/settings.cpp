// csrc/bindings/settings.cpp: functions of lazyeng._C that change how the engine, recording and
// fusion work.
#include "csrc/bindings/bindings.h"
#include "csrc/fuse/graphs/step_graph.h"
#include "csrc/fuse/group.h"
#include "csrc/fuse/op_table.h"
#include "csrc/record/process/gate.h"
#include "csrc/record/recorder.h"
#include "csrc/record/special/collectives.h"
#include "csrc/run/cores/finding.h"
#include "csrc/run/cores/parts.h"
#include "csrc/run/cores/width_trial.h"
#include "csrc/run/failures/ignored_warnings.h"
#include "csrc/run/memory/buffers.h"
#include "csrc/run/memory/cpu_allocator.h"
#include "csrc/run/python_ref.h"

namespace lazyeng::bindings {
namespace {

using record::current_recorder;

/// Of what is on or off, by any object's truth.
template <void (*set)(bool)>
PyObject* set_switch(PyObject*, PyObject* on) {
  const int truth = PyObject_IsTrue(on);
  if (truth < 0) return nullptr;
  set(truth != 0);
  Py_RETURN_NONE;
}

void set_fuses(bool on) { current_recorder()->window().set_fuses(on); }

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

PyObject* set_backing_device(PyObject*, PyObject* name) {
  return guarded([&] {
    record::set_backing_device(c10::Device(PyUnicode_AsUTF8(name)));
    Py_RETURN_NONE;
  });
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

PyObject* set_window_bounds(PyObject*, PyObject* args) {
  unsigned long nodes, microseconds;
  if (!PyArg_ParseTuple(args, "kk", &nodes, &microseconds)) return nullptr;
  record::Recorder& recorder = *current_recorder();
  recorder.window().set_full(nodes);
  recorder.engine().set_watch_every(std::chrono::microseconds(microseconds));
  Py_RETURN_NONE;
}

PyObject* kernel_settings_changed(PyObject*, PyObject* can_be_read) {
  run::kernel_settings_changed(can_be_read == Py_True);
  Py_RETURN_NONE;
}

PyObject* num_workers(PyObject*, PyObject*) {
  return PyLong_FromUnsignedLong(current_recorder()->engine().num_workers());
}

PyObject* warns_always(PyObject*, PyObject*) { return PyBool_FromLong(run::warns_always()); }

}  // namespace

PyMethodDef setting_methods[] = {
    {"set_collectives_at_the_call", set_switch<record::set_collectives_at_the_call>, METH_O,
     nullptr},
    {"set_warn_always", set_switch<run::set_warn_always>, METH_O, nullptr},
    {"set_trials_bounded", set_switch<run::set_trials_bounded>, METH_O, nullptr},
    {"set_always_in_parts", set_switch<run::set_always_in_parts>, METH_O, nullptr},
    {"set_inexact_fusion", set_switch<fuse::set_inexact>, METH_O, nullptr},
    {"set_inexact_device_fusion", set_switch<fuse::set_inexact_on_devices>, METH_O, nullptr},
    {"set_cuda_graphs", set_switch<fuse::set_cuda_graphs>, METH_O, nullptr},
    {"set_fusion_log", set_switch<fuse::set_logging>, METH_O, nullptr},
    {"set_fusion", set_switch<set_fuses>, METH_O, nullptr},
    {"set_limits", set_limits, METH_VARARGS, nullptr},
    {"set_num_workers", set_num_workers, METH_O, nullptr},
    {"num_workers", num_workers, METH_NOARGS, nullptr},
    {"set_backing_device", set_backing_device, METH_O, nullptr},
    {"warns_always", warns_always, METH_NOARGS, nullptr},
    {"install_buffer_pool", install_buffer_pool, METH_O, nullptr},
    {"empty_buffer_pool", empty_buffer_pool, METH_NOARGS, nullptr},
    {"set_window_bounds", set_window_bounds, METH_VARARGS, nullptr},
    {"kernel_settings_changed", kernel_settings_changed, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace lazyeng::bindings
