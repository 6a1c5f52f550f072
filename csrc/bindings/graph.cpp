// csrc/bindings/graph.cpp: the function of lazyeng._C that shows what is pending.
#include "csrc/record/graph.h"

#include <torch/csrc/autograd/python_variable.h>

#include "csrc/bindings/bindings.h"
#include "csrc/record/lazy_tensor.h"
#include "csrc/record/recorder.h"
#include "csrc/run/python_ref.h"

namespace lazyeng::bindings {
namespace {

using run::PyRef;

PyObject* places(const std::vector<size_t>& numbers) {
  PyRef list(PyList_New(0));
  for (size_t number : numbers) {
    PyRef item(PyLong_FromSize_t(number));
    if (!item || PyList_Append(list.get(), item.get()) != 0) return nullptr;
  }
  return list.release();
}

/// What it makes, then what it writes.
std::vector<std::string> outputs_of(const run::Node& node) {
  std::vector<std::string> texts;
  for (const run::ValueRef& value : node.outputs)
    if (value) texts.push_back(run::describe(value->geometry()));
  for (const run::TensorArg& arg : node.tensors)
    if (arg.written && arg.value) texts.push_back(run::describe(arg.value->geometry()));
  return texts;
}

/// (label, op, line, inputs, outputs, group, pushed, reads, follows)
PyObject* to_python(const record::GraphNode& shown) {
  const run::Node& node = *shown.node;
  const std::string line = stacks::innermost_user_line(node.stack);
  const PyRef inputs = run::string_list(node.describe_inputs());
  const PyRef outputs = run::string_list(outputs_of(node));
  PyRef reads(places(shown.reads)), follows(places(shown.follows));
  if (!inputs || !outputs || !reads || !follows) return nullptr;
  return Py_BuildValue("sssOOiOOO", node.label().c_str(), node.info.name.c_str(), line.c_str(),
                       inputs.get(), outputs.get(), shown.group, shown.pushed ? Py_True : Py_False,
                       reads.get(), follows.get());
}

PyObject* pending(PyObject*, PyObject* tensors) {
  return guarded([&]() -> PyObject* {
    std::vector<run::StorageVarRef> vars;
    for (Py_ssize_t i = 0; i < PyList_Size(tensors); ++i) {
      record::LazyImpl* lazy = record::lazy_impl(THPVariable_Unpack(PyList_GET_ITEM(tensors, i)));
      if (lazy) vars.push_back(lazy->value()->var_ref());
    }
    PyRef list(PyList_New(0));
    for (const record::GraphNode& node : record::current_recorder()->pending(vars)) {
      PyRef item(to_python(node));
      if (!item || PyList_Append(list.get(), item.get()) != 0) return nullptr;
    }
    return list.release();
  });
}

}  // namespace

PyMethodDef graph_methods[] = {
    {"pending", pending, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace lazyeng::bindings
