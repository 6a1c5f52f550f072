// csrc/bindings/blocks.cpp: functions of lazyeng._C about lazy() blocks, and what is reported to
// the program.
#include "csrc/bindings/bindings.h"
#include "csrc/record/library.h"
#include "csrc/record/process/first_use.h"
#include "csrc/record/recorder.h"
#include "csrc/record/special/autocast.h"
#include "csrc/record/special/factories.h"
#include "csrc/record/sync_debug.h"
#include "csrc/run/caller/caller_modes.h"
#include "csrc/run/failures/failure_log.h"
#include "csrc/run/failures/kernel_warnings.h"
#include "csrc/run/plain/plain_values.h"
#include "csrc/run/python_ref.h"

namespace lazyeng::bindings {
namespace {

using record::current_recorder;
using run::PyRef;

uint64_t enter(record::Mode mode) {
  record::first_use();
  record::adopt_new_ops();
  const uint64_t block = record::enter_block(mode);
  run::failure_log().enter_block(block);
  return block;
}

PyObject* in_custom_kernel(PyObject*, PyObject*) {
  return PyBool_FromLong(run::InCustomKernel::active());
}

/// Who asks whether the program holds a plain tensor does not mean the table of plain values. (Two
/// values of one memory would keep each other: so all of them go.)
void drop_plain_values_of_failures() {
  if (run::FailureRoot::alive.load(std::memory_order_relaxed) != 0) run::plain_values().drop_all();
}

void leave(uint64_t block) {
  record::leave_block(block);
  drop_plain_values_of_failures();
  if (auto plain = run::failure_log().leave_block(block); !plain.empty())
    current_recorder()->forget_failures(std::move(plain));
  if (!record::thread_mode().inside()) run::plain_values().drop_all();
}

PyObject* leave_block(PyObject*, PyObject* block) {
  const unsigned long long number = PyLong_AsUnsignedLongLong(block);
  if (PyErr_Occurred()) return nullptr;
  return guarded([&] {
    leave(number);
    Py_RETURN_NONE;
  });
}

// ---- What `with lazy():` calls. Python runs handlers of signals, which may raise (Ctrl-C),
// between any two of its own instructions: a block that Python code enters and leaves could be left
// open by one, for ever. So a block is entered here, and is left when this returns, whatever has
// happened meanwhile in the Python code that waits and tells of failures.

/// The blocks that the calling thread has entered with this object, a list; borrowed. Null with a
/// Python error set.
PyObject* blocks_of(PyObject* object) {
  const PyRef entered(PyObject_GetAttrString(object, "_entered"));
  const PyRef here(entered ? PyObject_GetAttrString(entered.get(), "__dict__") : nullptr);
  const PyRef name(here ? PyUnicode_InternFromString("blocks") : nullptr);
  const PyRef empty(name ? PyList_New(0) : nullptr);
  return empty ? PyDict_SetDefault(here.get(), name.get(), empty.get()) : nullptr;
}

/// What keeps a Python error through code that may set another.
class PythonErrorKept {
 public:
  PythonErrorKept() { PyErr_Fetch(&type_, &value_, &trace_); }
  PythonErrorKept(const PythonErrorKept&) = delete;
  ~PythonErrorKept() { PyErr_Restore(type_, value_, trace_); }

 private:
  PyObject *type_ = nullptr, *value_ = nullptr, *trace_ = nullptr;
};

/// __enter__(self). A kernel that the engine runs is eager code, and a block in it could wait for
/// its own op: there is none then.
PyObject* enter_with(PyObject*, PyObject* args) {
  PyObject* object = nullptr;
  if (!PyArg_ParseTuple(args, "O", &object)) return nullptr;
  return guarded([&]() -> PyObject* {
    PyObject* const blocks = blocks_of(object);
    const PyRef mode(blocks ? PyObject_GetAttrString(object, "_number_of_mode") : nullptr);
    const long number = mode ? PyLong_AsLong(mode.get()) : -1;
    if (PyErr_Occurred()) return nullptr;
    if (run::InCustomKernel::active())
      return PyList_Append(blocks, Py_None) == 0 ? Py_NewRef(object) : nullptr;
    const uint64_t block = enter(static_cast<record::Mode>(number));
    const PyRef entered(PyLong_FromUnsignedLongLong(block));
    if (entered && PyList_Append(blocks, entered.get()) == 0) return Py_NewRef(object);
    const PythonErrorKept kept;
    leave(block);
    return nullptr;
  });
}

/// __exit__(self, type, error, traceback). `finish(self, block, error)` waits and tells; the block
/// is -1 if this thread has entered none.
PyObject* exit_with(PyObject* finish, PyObject* args) {
  PyObject *object = nullptr, *type = nullptr, *error = nullptr, *trace = nullptr;
  if (!PyArg_ParseTuple(args, "OOOO", &object, &type, &error, &trace)) return nullptr;
  return guarded([&]() -> PyObject* {
    PyObject* const blocks = blocks_of(object);
    if (!blocks) return nullptr;
    const Py_ssize_t last = PyList_GET_SIZE(blocks) - 1;
    const PyRef block(last < 0 ? PyLong_FromLong(-1) : Py_NewRef(PyList_GET_ITEM(blocks, last)));
    if (last >= 0 && PyList_SetSlice(blocks, last, last + 1, nullptr) != 0) return nullptr;
    if (block.get() == Py_None) Py_RETURN_NONE;
    const uint64_t number = last < 0 ? 0 : PyLong_AsUnsignedLongLong(block.get());
    PyRef finished(PyObject_CallFunctionObjArgs(finish, object, block.get(), error, nullptr));
    const PythonErrorKept kept;
    if (last >= 0 && record::is_open_here(number)) leave(number);
    return finished.release();
  });
}

/// call_in_block(mode, function, args): calls the function in a block, at whose end nothing waits.
PyObject* call_in_block(PyObject*, PyObject* arguments) {
  int mode = 0;
  PyObject *function = nullptr, *args = nullptr;
  if (!PyArg_ParseTuple(arguments, "iOO!", &mode, &function, &PyTuple_Type, &args)) return nullptr;
  return guarded([&]() -> PyObject* {
    const uint64_t block = enter(static_cast<record::Mode>(mode));
    PyRef result(PyObject_Call(function, args, nullptr));
    const PythonErrorKept kept;
    if (record::is_open_here(block)) leave(block);
    return result.release();
  });
}

/// with_methods(finish): (__enter__, __exit__) for a class.
PyObject* with_methods(PyObject*, PyObject* finish) {
  static PyMethodDef entering{"__enter__", enter_with, METH_VARARGS, nullptr};
  static PyMethodDef exiting{"__exit__", exit_with, METH_VARARGS, nullptr};
  const PyRef enters(PyCFunction_New(&entering, nullptr)), exits(PyCFunction_New(&exiting, finish));
  if (!enters || !exits) return nullptr;
  return Py_BuildValue("NN", PyInstanceMethod_New(enters.get()), PyInstanceMethod_New(exits.get()));
}

/// leave_blocks(): all of this thread, in a process that will not come to their ends.
PyObject* leave_blocks(PyObject*, PyObject*) {
  return guarded([&] {
    for (uint64_t block = record::thread_mode().block; record::is_open_here(block);
         block = record::thread_mode().block)
      leave(block);
    Py_RETURN_NONE;
  });
}

PyObject* alone_holds_back(PyObject*, PyObject* block) {
  const unsigned long long number = PyLong_AsUnsignedLongLong(block);
  if (PyErr_Occurred()) return nullptr;
  return PyBool_FromLong(record::alone_holds_back(number));
}

PyObject* records_in_sync_only(PyObject*, PyObject*) {
  return PyBool_FromLong(record::records_in_sync_only());
}

PyObject* thread_mode(PyObject*, PyObject*) {
  const record::ThreadMode& mode = record::thread_mode();
  return Py_BuildValue("iI", static_cast<int>(mode.mode), mode.depth);
}

PyObject* set_default_mode(PyObject*, PyObject* mode) {
  record::set_default_mode(static_cast<record::Mode>(PyLong_AsLong(mode)));
  Py_RETURN_NONE;
}

/// call_outside(function, args, kwargs): calls the function as if outside lazy().
PyObject* call_outside(PyObject*, PyObject* arguments) {
  PyObject *function = nullptr, *args = nullptr, *kwargs = nullptr;
  if (!PyArg_ParseTuple(arguments, "OO!O!", &function, &PyTuple_Type, &args, &PyDict_Type, &kwargs))
    return nullptr;
  const record::OutsideBlock outside;
  return PyObject_Call(function, args, kwargs);
}

PyObject* set_backward_from_lazy(PyObject*, PyObject* lazy) {
  return PyBool_FromLong(record::set_backward_from_lazy(lazy == Py_True));
}

PyObject* follow_autocast(PyObject*, PyObject*) {
  record::follow_autocast();
  Py_RETURN_NONE;
}

PyObject* wait_for_plain_writes(PyObject*, PyObject*) {
  return guarded([&] {
    current_recorder()->wait_for_plain_writes();
    Py_RETURN_NONE;
  });
}

PyObject* finish_plain_reads(PyObject*, PyObject*) {
  return guarded([&] {
    current_recorder()->finish_plain_reads();
    Py_RETURN_NONE;
  });
}

/// Null (Ctrl-C has come): none of them counts as reported that did not before.
PyObject* exceptions_of(const std::vector<std::shared_ptr<run::FailureRoot>>& roots) {
  std::vector<std::shared_ptr<run::FailureRoot>> unreported;
  PyRef list(PyList_New(0));
  for (const auto& root : roots) {
    if (!root->reported) unreported.push_back(root);
    PyRef exception(run::build_exception(*root));
    if (exception && PyList_Append(list.get(), exception.get()) == 0) continue;
    for (const auto& built : unreported) built->reported = false;
    return nullptr;
  }
  return list.release();
}

PyObject* unreported(PyObject*, PyObject*) {
  return guarded([&] {
    run::FailureLog::Unreported unreported = run::failure_log().unreported();
    PyObject* const exceptions = exceptions_of(unreported.roots);
    if (!exceptions) run::failure_log().put_back(std::move(unreported));
    return exceptions;
  });
}

/// Exceptions to raise.
PyObject* failures_of_block(PyObject*, PyObject* block) {
  return guarded([&] {
    drop_plain_values_of_failures();
    return exceptions_of(run::failure_log().of_block(PyLong_AsUnsignedLongLong(block)));
  });
}

/// Exceptions to read: those that nobody has told of, and that count as unreported afterwards, too.
PyObject* look_at_failures_of_block(PyObject*, PyObject* block) {
  return guarded([&] {
    drop_plain_values_of_failures();
    auto roots = run::failure_log().of_block(PyLong_AsUnsignedLongLong(block));
    std::erase_if(roots, [](const auto& root) { return root->reported.load(); });
    PyObject* const exceptions = exceptions_of(roots);
    for (const auto& root : roots) root->reported = false;
    return exceptions;
  });
}

PyObject* mark_reported(PyObject*, PyObject*) {
  for (const auto& root : run::failure_log().unreported().roots) root->reported = true;
  Py_RETURN_NONE;
}

/// Whether some tensor may have failed.
PyObject* any_failure(PyObject*, PyObject*) {
  return PyBool_FromLong(run::FailureRoot::alive.load(std::memory_order_relaxed) != 0);
}

PyObject* deliver_warnings(PyObject*, PyObject*) {
  return guarded([&] {
    run::deliver_warnings();
    Py_RETURN_NONE;
  });
}

PyObject* set_reports_waits(PyObject*, PyObject* reports) {
  return PyBool_FromLong(record::set_reports_waits(reports == Py_True));
}

}  // namespace

PyMethodDef block_methods[] = {
    {"leave_block", leave_block, METH_O, nullptr},
    {"call_in_block", call_in_block, METH_VARARGS, nullptr},
    {"with_methods", with_methods, METH_O, nullptr},
    {"leave_blocks", leave_blocks, METH_NOARGS, nullptr},
    {"in_custom_kernel", in_custom_kernel, METH_NOARGS, nullptr},
    {"thread_mode", thread_mode, METH_NOARGS, nullptr},
    {"alone_holds_back", alone_holds_back, METH_O, nullptr},
    {"records_in_sync_only", records_in_sync_only, METH_NOARGS, nullptr},
    {"set_default_mode", set_default_mode, METH_O, nullptr},
    {"call_outside", call_outside, METH_VARARGS, nullptr},
    {"set_backward_from_lazy", set_backward_from_lazy, METH_O, nullptr},
    {"follow_autocast", follow_autocast, METH_NOARGS, nullptr},
    {"wait_for_plain_writes", wait_for_plain_writes, METH_NOARGS, nullptr},
    {"finish_plain_reads", finish_plain_reads, METH_NOARGS, nullptr},
    {"unreported", unreported, METH_NOARGS, nullptr},
    {"failures_of_block", failures_of_block, METH_O, nullptr},
    {"look_at_failures_of_block", look_at_failures_of_block, METH_O, nullptr},
    {"mark_reported", mark_reported, METH_NOARGS, nullptr},
    {"any_failure", any_failure, METH_NOARGS, nullptr},
    {"deliver_warnings", deliver_warnings, METH_NOARGS, nullptr},
    {"set_reports_waits", set_reports_waits, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace lazyeng::bindings
