// csrc/bindings/stacks.cpp: functions of lazyeng._C about creation stacks.
#include <chrono>

#include "csrc/bindings/bindings.h"
#include "csrc/run/python_ref.h"
#include "csrc/stacks/internal_code.h"
#include "csrc/stacks/stack_table.h"
#include "csrc/stacks/stub_frame.h"
#include "csrc/stacks/unwind.h"

namespace lazyeng::bindings {
namespace {

PyObject* set_stack_mode(PyObject*, PyObject* mode) {
  stacks::set_mode(static_cast<stacks::Mode>(PyLong_AsLong(mode)));
  Py_RETURN_NONE;
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
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(prefixes); ++i) {
    const run::PyRef bytes(PyUnicode_EncodeFSDefault(PyList_GET_ITEM(prefixes, i)));
    if (!bytes) return nullptr;
    list.emplace_back(PyBytes_AS_STRING(bytes.get()));
  }
  stacks::set_internal_prefixes(std::move(list));
  Py_RETURN_NONE;
}

PyObject* add_internal_code(PyObject*, PyObject* code) {
  if (PyCode_Check(code)) stacks::add_internal_code(reinterpret_cast<PyCodeObject*>(code));
  Py_RETURN_NONE;
}

PyObject* hide_while_unwinding(PyObject*, PyObject* args) {
  PyObject *error = nullptr, *companion = nullptr;
  if (!PyArg_ParseTuple(args, "OO", &error, &companion)) return nullptr;
  stacks::hide_while_unwinding(error, companion);
  Py_RETURN_NONE;
}

PyObject* unwind_hook_is_armed(PyObject*, PyObject*) {
  return PyBool_FromLong(stacks::unwind_hook_is_armed());
}

PyObject* capture_stack(PyObject*, PyObject*) { return stacks::to_python(stacks::capture()); }

PyObject* new_stub_frame(PyObject*, PyObject* args) {
  PyObject *code = nullptr, *globals = nullptr;
  if (!PyArg_ParseTuple(args, "O!O!", &PyCode_Type, &code, &PyDict_Type, &globals)) return nullptr;
  return stacks::new_stub_frame(reinterpret_cast<PyCodeObject*>(code), globals);
}

}  // namespace

PyMethodDef stack_methods[] = {
    {"set_stack_mode", set_stack_mode, METH_O, nullptr},
    {"time_capture", time_capture, METH_O, nullptr},
    {"set_internal_prefixes", set_internal_prefixes, METH_O, nullptr},
    {"add_internal_code", add_internal_code, METH_O, nullptr},
    {"hide_while_unwinding", hide_while_unwinding, METH_VARARGS, nullptr},
    {"unwind_hook_is_armed", unwind_hook_is_armed, METH_NOARGS, nullptr},
    {"capture_stack", capture_stack, METH_NOARGS, nullptr},
    {"_new_stub_frame", new_stub_frame, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace lazyeng::bindings
