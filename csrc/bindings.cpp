// csrc/bindings.cpp: the Python module lazyeng._C.
//
// Owns the recorder, and with it the engine. Every function that may wait lets go of the GIL in the
// recorder. C++ exceptions become Python ones through torch's own translation.
#include <Python.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Storage.h>
#include <torch/csrc/autograd/python_variable.h>

#include <chrono>
#include <thread>

#include "csrc/fuse/group.h"
#include "csrc/fuse/partition.h"
#include "csrc/fuse/plan.h"
#include "csrc/generator_hooks.h"
#include "csrc/record/factories.h"
#include "csrc/record/fork.h"
#include "csrc/record/gate.h"
#include "csrc/record/generators.h"
#include "csrc/record/lazy_tensor.h"
#include "csrc/record/library.h"
#include "csrc/record/recorder.h"
#include "csrc/record/slots.h"
#include "csrc/record/sync_debug.h"
#include "csrc/run/buffers.h"
#include "csrc/run/kernel_warnings.h"
#include "csrc/run/own_writes.h"
#include "csrc/run/plain_storage.h"
#include "csrc/run/python_ref.h"
#include "csrc/stacks/stack_table.h"
#include "csrc/stacks/stub_frame.h"

namespace lazyeng {
namespace {

using record::current_recorder;
using run::PyRef;

struct Session {
  std::unique_ptr<record::Recorder> recorder;
};
Session session;

/// Runs `body`, turning C++ exceptions into Python ones.
template <class Body>
PyObject* guarded(Body body) {
  try {
    return body();
  } catch (...) {
    torch::translate_exception_to_python(std::current_exception());
    return nullptr;
  }
}

/// The value of a lazy tensor; throws c10::TypeError if it is none.
const run::ValueRef& value_of(PyObject* object) {
  TORCH_CHECK_TYPE(THPVariable_Check(object), "expected a LazyTensor, got ",
                   Py_TYPE(object)->tp_name);
  record::LazyImpl* lazy = record::lazy_impl(THPVariable_Unpack(object));
  TORCH_CHECK_TYPE(lazy, "expected a LazyTensor, got a plain tensor of type ",
                   Py_TYPE(object)->tp_name);
  if (lazy->resized_outside()) record::follow_resize(THPVariable_Unpack(object));
  return lazy->value();
}

PyObject* init(PyObject*, PyObject* args) {
  PyObject* cls = nullptr;
  unsigned workers = 0;
  if (!PyArg_ParseTuple(args, "OI", &cls, &workers)) return nullptr;
  return guarded([&] {
    record::set_python_class(reinterpret_cast<PyTypeObject*>(cls));
    session.recorder = std::make_unique<record::Recorder>(engine::make_threaded_engine(workers));
    record::set_current_recorder(session.recorder.get());
    record::install_fork_handlers();
    const size_t kernels = record::register_kernels();
    if (!record::install_slots() || !record::install_methods() || !record::install_view_methods() ||
        !record::install_overrides())
      return static_cast<PyObject*>(nullptr);
    return install_generator_hooks() ? PyLong_FromSize_t(kernels) : nullptr;
  });
}

PyObject* wrap_tensor(PyObject*, PyObject* object) {
  return guarded([&]() -> PyObject* {
    TORCH_CHECK_TYPE(THPVariable_Check(object), "expected a tensor, got ",
                     Py_TYPE(object)->tp_name);
    const at::Tensor& tensor = THPVariable_Unpack(object);
    record::adopt_new_ops();
    if (record::lazy_impl(tensor)) return Py_NewRef(object);
    TORCH_CHECK_TYPE(record::recordable(tensor),
                     "lazyeng: expected a strided tensor on cpu or cuda, got one of layout ",
                     tensor.layout(), " on ", tensor.device(),
                     tensor.is_quantized() ? ", quantized" : "");
    auto value =
        make_ref<run::Value>(run::plain_storages().var_of(tensor), run::geometry_of(tensor));
    return record::python_object(record::make_lazy(std::move(value)));
  });
}

PyObject* is_lazy(PyObject*, PyObject* object) {
  return PyBool_FromLong(THPVariable_Check(object) &&
                         record::lazy_impl(THPVariable_Unpack(object)) != nullptr);
}

PyObject* plain(PyObject*, PyObject* object) {
  return guarded([&] {
    const run::ValueRef value = value_of(object);
    current_recorder()->wait_and_check(*value);
    return THPVariable_Wrap(value->plain());
  });
}

PyObject* wait(PyObject*, PyObject* object) {
  return guarded([&] {
    const run::ValueRef value = value_of(object);
    current_recorder()->wait_and_check(*value);
    Py_RETURN_NONE;
  });
}

PyObject* is_ready(PyObject*, PyObject* object) {
  return guarded([&] { return PyBool_FromLong(!value_of(object)->var().awaited()); });
}

/// (state, text): ("pending", "aten::mm @ train.py:42"), ("failed", "..."), ("ready", "").
PyObject* status(PyObject*, PyObject* object) {
  return guarded([&]() -> PyObject* {
    const run::ValueRef value = value_of(object);
    if (value->var().awaited()) {
      const std::string writer = current_recorder()->describe_writer(value->var());
      return Py_BuildValue("ss", "pending", writer.c_str());
    }
    const engine::FailurePtr failure = value->var().failure();
    if (!failure) return Py_BuildValue("ss", "ready", "");
    const run::FailureRoot& root = *static_cast<const run::OpFailure&>(*failure).root();
    std::string text = root.name;
    const std::string line = stacks::innermost_user_line(root.stack);
    if (!line.empty()) text += " @ " + line;
    return Py_BuildValue("ss", "failed", text.c_str());
  });
}

PyObject* wait_for_all(PyObject*, PyObject*) {
  return guarded([&] {
    current_recorder()->wait_for_all();
    Py_RETURN_NONE;
  });
}

PyObject* exceptions_of(const std::vector<std::shared_ptr<run::FailureRoot>>& roots) {
  PyRef list(PyList_New(0));
  for (const auto& root : roots) {
    PyRef exception(run::build_exception(*root));
    if (!exception || PyList_Append(list.get(), exception.get()) != 0) return nullptr;
  }
  return list.release();
}

PyObject* unreported(PyObject*, PyObject*) {
  return guarded([&] { return exceptions_of(run::failure_log().unreported()); });
}

PyObject* unreported_of_block(PyObject*, PyObject* block) {
  return guarded([&] {
    return exceptions_of(run::failure_log().unreported_of_block(PyLong_AsUnsignedLongLong(block)));
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

PyObject* wait_for_plain_writes(PyObject*, PyObject*) {
  return guarded([&] {
    current_recorder()->wait_for_plain_writes();
    Py_RETURN_NONE;
  });
}

PyObject* wait_for_generators(PyObject*, PyObject*) {
  return guarded([&] {
    if (current_recorder()) current_recorder()->wait_for_generators();
    Py_RETURN_NONE;
  });
}

PyObject* enter_block(PyObject*, PyObject* mode) {
  return guarded([&] {
    record::adopt_new_ops();
    const auto wanted = static_cast<record::Mode>(PyLong_AsLong(mode));
    const record::ThreadMode before = record::enter_block(wanted);
    return Py_BuildValue("iIKK", static_cast<int>(before.mode), before.depth,
                         static_cast<unsigned long long>(before.block),
                         static_cast<unsigned long long>(record::thread_mode().block));
  });
}

PyObject* leave_block(PyObject*, PyObject* token) {
  int mode = 0;
  unsigned depth = 0;
  unsigned long long outer = 0, own = 0;
  if (!PyArg_ParseTuple(token, "iIKK", &mode, &depth, &outer, &own)) return nullptr;
  record::leave_block({static_cast<record::Mode>(mode), depth, outer});
  Py_RETURN_NONE;
}

PyObject* thread_mode(PyObject*, PyObject*) {
  const record::ThreadMode& mode = record::thread_mode();
  return Py_BuildValue("iI", static_cast<int>(mode.mode), mode.depth);
}

PyObject* set_default_mode(PyObject*, PyObject* mode) {
  record::set_default_mode(static_cast<record::Mode>(PyLong_AsLong(mode)));
  Py_RETURN_NONE;
}

PyObject* set_stack_mode(PyObject*, PyObject* mode) {
  stacks::set_mode(static_cast<stacks::Mode>(PyLong_AsLong(mode)));
  Py_RETURN_NONE;
}

PyObject* set_reports_waits(PyObject*, PyObject* reports) {
  return PyBool_FromLong(record::set_reports_waits(reports == Py_True));
}

PyObject* deliver_warnings(PyObject*, PyObject*) {
  return guarded([&] {
    run::deliver_warnings();
    Py_RETURN_NONE;
  });
}

/// (ns of the first capture, mean ns of `count` more) of the caller's stack.
PyObject* time_capture(PyObject*, PyObject* count) {
  using Clock = std::chrono::steady_clock;
  using Ns = std::chrono::duration<double, std::nano>;
  const long more = PyLong_AsLong(count);
  if (PyErr_Occurred()) return nullptr;
  const auto start = Clock::now();
  const stacks::StackRef first = stacks::capture();
  const auto middle = Clock::now();
  for (long i = 0; i < more; ++i) stacks::capture();
  const Ns rest = Clock::now() - middle;
  return Py_BuildValue("dd", Ns(middle - start).count(), more ? rest.count() / more : 0.0);
}

PyObject* set_internal_prefixes(PyObject*, PyObject* prefixes) {
  std::vector<std::string> list;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(prefixes); ++i)
    list.emplace_back(PyUnicode_AsUTF8(PyList_GET_ITEM(prefixes, i)));
  stacks::set_internal_prefixes(std::move(list));
  Py_RETURN_NONE;
}

PyObject* capture_stack(PyObject*, PyObject*) { return stacks::to_python(stacks::capture()); }

PyObject* new_stub_frame(PyObject*, PyObject* args) {
  PyObject *code = nullptr, *globals = nullptr;
  if (!PyArg_ParseTuple(args, "O!O!", &PyCode_Type, &code, &PyDict_Type, &globals)) return nullptr;
  return stacks::new_stub_frame(reinterpret_cast<PyCodeObject*>(code), globals);
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

PyObject* set_backing_device(PyObject*, PyObject* name) {
  return guarded([&] {
    record::set_backing_device(c10::Device(PyUnicode_AsUTF8(name)));
    Py_RETURN_NONE;
  });
}

PyObject* stats(PyObject*, PyObject*) {
  record::Recorder& recorder = *current_recorder();
  stacks::collect();
  const engine::Counters counters = recorder.engine().counters();
  const record::RecordCounters& recorded = recorder.counters();
  using ull = unsigned long long;
  const fuse::Stats& fused = fuse::stats();
  const ull groups = fused.groups;
  const run::BufferStats buffers = run::buffer_stats();
  return Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K}", "pool_bytes",
                       ull{buffers.kept}, "peak_bytes", ull{buffers.peak}, "recorded",
                       ull{recorded.recorded}, "executed", ull{counters.executed}, "groups", groups,
                       "launches", ull{counters.executed} + groups - fused.members, "syncs",
                       ull{recorded.syncs}, "fallbacks", ull{recorded.fallbacks}, "pending_ops",
                       ull{counters.pending_ops}, "pending_bytes", ull{counters.pending_bytes},
                       "stack_table_entries", ull{stacks::table_size()});
}

PyObject* fallback_counts(PyObject*, PyObject*) {
  PyRef counts(PyDict_New());
  for (const auto& [name, count] : current_recorder()->fallback_counts()) {
    PyRef number(PyLong_FromUnsignedLongLong(count));
    if (!number || PyDict_SetItemString(counts.get(), name.c_str(), number.get()) != 0)
      return nullptr;
  }
  return counts.release();
}

PyObject* stop_engine(PyObject*, PyObject*) {
  return guarded([&] {
    if (record::Recorder* recorder = current_recorder()) {
      const run::NoGil released;
      const record::Gate::Inside inside;
      recorder->stop_threads();
      recorder->flush();
      recorder->engine().stop();
    }
    return Py_NewRef(Py_None);
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

PyObject* after_fork_in_parent(PyObject*, PyObject*) {
  return guarded([&] {
    record::after_fork_in_parent(*current_recorder());
    return Py_NewRef(Py_None);
  });
}

PyObject* after_fork_in_child(PyObject*, PyObject*) {
  return guarded([&] { return PyBool_FromLong(record::after_fork_in_child(*current_recorder())); });
}

PyObject* forget_failures(PyObject*, PyObject*) {
  for (const auto& root : run::failure_log().unreported()) root->reported = true;
  Py_RETURN_NONE;
}

/// Whether a method may look at a plain tensor's memory at once.
PyObject* reads_directly(PyObject*, PyObject* object) {
  if (!THPVariable_Check(object)) Py_RETURN_TRUE;  // torch's own method says what it expects
  const at::Tensor& tensor = THPVariable_Unpack(object);
  if (record::thread_mode().inside()) return PyBool_FromLong(record::lazy_impl(tensor) != nullptr);
  return PyBool_FromLong(!run::plain_storages().is_guarded(tensor));
}

/// call_outside(function, args, kwargs): calls the function as if outside lazy().
PyObject* call_outside(PyObject*, PyObject* arguments) {
  PyObject *function = nullptr, *args = nullptr, *kwargs = nullptr;
  if (!PyArg_ParseTuple(arguments, "OO!O!", &function, &PyTuple_Type, &args, &PyDict_Type, &kwargs))
    return nullptr;
  const record::OutsideBlock outside;
  return PyObject_Call(function, args, kwargs);
}

/// call_eagerly(function, tensor, args, kwargs): waits for recorded writes to the plain tensor,
/// then calls function(tensor, *args, **kwargs) as if outside lazy().
PyObject* call_eagerly(PyObject*, PyObject* arguments) {
  PyObject *function = nullptr, *tensor = nullptr, *rest = nullptr, *kwargs = nullptr;
  if (!PyArg_ParseTuple(arguments, "OOO!O!", &function, &tensor, &PyTuple_Type, &rest, &PyDict_Type,
                        &kwargs))
    return nullptr;
  return guarded([&]() -> PyObject* {
    if (run::StorageVarRef var = run::plain_storages().find(THPVariable_Unpack(tensor)))
      current_recorder()->wait_for(*var);
    PyRef args(PyTuple_New(1 + PyTuple_GET_SIZE(rest)));
    if (!args) return nullptr;
    PyTuple_SET_ITEM(args.get(), 0, Py_NewRef(tensor));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(rest); ++i)
      PyTuple_SET_ITEM(args.get(), i + 1, Py_NewRef(PyTuple_GET_ITEM(rest, i)));
    const record::OutsideBlock outside;
    return PyObject_Call(function, args.get(), kwargs);
  });
}

/// follow_storage(untyped_storage): the storage may have moved to other memory: the engine follows.
/// False if the engine does not know it.
PyObject* follow_storage(PyObject*, PyObject* object) {
  return guarded([&] {
    TORCH_CHECK_TYPE(THPStorage_Check(object), "expected a storage, got ",
                     Py_TYPE(object)->tp_name);
    const at::Tensor over = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(THPStorage_Unpack(object)), c10::DispatchKeySet(c10::DispatchKey::CPU),
        c10::scalarTypeToTypeMeta(c10::kByte));
    const run::StorageVarRef var = run::plain_storages().find(over);
    if (var) run::plain_storages().follow_resize(*var, /*through_user_face=*/true);
    return PyBool_FromLong(static_cast<bool>(var));
  });
}

PyObject* set_backward_from_lazy(PyObject*, PyObject* lazy) {
  return PyBool_FromLong(record::set_backward_from_lazy(lazy == Py_True));
}

PyObject* adopt_new_ops(PyObject*, PyObject*) {
  return guarded([&] {
    record::adopt_new_ops();
    Py_RETURN_NONE;
  });
}

/// Of a tensor that an op is about to write; outside lazy() an op on plain tensors is not ours.
PyObject* announce_own_write(PyObject*, PyObject* object) {
  return guarded([&] {
    const at::Tensor& tensor = THPVariable_Unpack(object);
    if (record::lazy_impl(tensor) || record::thread_mode().inside())
      run::announce_own_write(tensor);
    Py_RETURN_NONE;
  });
}

PyObject* install_buffer_pool(PyObject*, PyObject* limit) {
  const unsigned long long bytes = PyLong_AsUnsignedLongLong(limit);
  if (PyErr_Occurred()) return nullptr;
  run::install_buffer_pool(bytes);
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

PyObject* set_inexact_fusion(PyObject*, PyObject* on) {
  fuse::set_inexact(on == Py_True);
  Py_RETURN_NONE;
}

PyObject* plan_count(PyObject*, PyObject*) { return PyLong_FromSize_t(fuse::plan_count()); }

PyObject* set_fusion_log(PyObject*, PyObject* on) {
  fuse::set_logging(on == Py_True);
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"announce_own_write", announce_own_write, METH_O, nullptr},
    {"install_buffer_pool", install_buffer_pool, METH_O, nullptr},
    {"empty_buffer_pool", empty_buffer_pool, METH_NOARGS, nullptr},
    {"set_fusion", set_fusion, METH_O, nullptr},
    {"plan_count", plan_count, METH_NOARGS, nullptr},
    {"set_inexact_fusion", set_inexact_fusion, METH_O, nullptr},
    {"set_fusion_log", set_fusion_log, METH_O, nullptr},
    {"init", init, METH_VARARGS, nullptr},
    {"wrap_tensor", wrap_tensor, METH_O, nullptr},
    {"is_lazy", is_lazy, METH_O, nullptr},
    {"plain", plain, METH_O, nullptr},
    {"wait", wait, METH_O, nullptr},
    {"is_ready", is_ready, METH_O, nullptr},
    {"status", status, METH_O, nullptr},
    {"wait_for_all", wait_for_all, METH_NOARGS, nullptr},
    {"unreported", unreported, METH_NOARGS, nullptr},
    {"unreported_of_block", unreported_of_block, METH_O, nullptr},
    {"flush", flush, METH_NOARGS, nullptr},
    {"wait_for_plain_writes", wait_for_plain_writes, METH_NOARGS, nullptr},
    {"wait_for_generators", wait_for_generators, METH_NOARGS, nullptr},
    {"enter_block", enter_block, METH_O, nullptr},
    {"leave_block", leave_block, METH_O, nullptr},
    {"thread_mode", thread_mode, METH_NOARGS, nullptr},
    {"set_default_mode", set_default_mode, METH_O, nullptr},
    {"set_stack_mode", set_stack_mode, METH_O, nullptr},
    {"set_reports_waits", set_reports_waits, METH_O, nullptr},
    {"deliver_warnings", deliver_warnings, METH_NOARGS, nullptr},
    {"time_capture", time_capture, METH_O, nullptr},
    {"set_internal_prefixes", set_internal_prefixes, METH_O, nullptr},
    {"capture_stack", capture_stack, METH_NOARGS, nullptr},
    {"_new_stub_frame", new_stub_frame, METH_VARARGS, nullptr},
    {"set_limits", set_limits, METH_VARARGS, nullptr},
    {"set_num_workers", set_num_workers, METH_O, nullptr},
    {"num_workers", num_workers, METH_NOARGS, nullptr},
    {"set_backing_device", set_backing_device, METH_O, nullptr},
    {"stats", stats, METH_NOARGS, nullptr},
    {"fallback_counts", fallback_counts, METH_NOARGS, nullptr},
    {"stop_engine", stop_engine, METH_NOARGS, nullptr},
    {"start_engine", start_engine, METH_NOARGS, nullptr},
    {"before_fork", before_fork, METH_NOARGS, nullptr},
    {"after_fork_in_parent", after_fork_in_parent, METH_NOARGS, nullptr},
    {"after_fork_in_child", after_fork_in_child, METH_NOARGS, nullptr},
    {"forget_failures", forget_failures, METH_NOARGS, nullptr},
    {"reads_directly", reads_directly, METH_O, nullptr},
    {"call_outside", call_outside, METH_VARARGS, nullptr},
    {"call_eagerly", call_eagerly, METH_VARARGS, nullptr},
    {"follow_storage", follow_storage, METH_O, nullptr},
    {"set_backward_from_lazy", set_backward_from_lazy, METH_O, nullptr},
    {"adopt_new_ops", adopt_new_ops, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "lazyeng._C", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace lazyeng

PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&lazyeng::module); }
