// csrc/bindings/generator_hooks.cpp: torch.Generator's state is read and set in program order.
#include "csrc/bindings/generator_hooks.h"

#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/python_variable.h>

#include <array>

#include "csrc/record/lazy_tensor.h"
#include "csrc/record/recorder.h"
#include "csrc/run/failures/python_error.h"
#include "csrc/run/plain/plain_storage.h"
#include "csrc/run/python_ref.h"

namespace lazyeng {
namespace {

using run::PyRef;

constexpr std::array<const char*, 10> kNames = {
    "get_state",   "set_state",           "manual_seed",         "seed",       "initial_seed",
    "clone_state", "graphsafe_get_state", "graphsafe_set_state", "get_offset", "set_offset"};
std::array<PyObject*, kNames.size()> originals{};  // torch's methods, owned

/// What torch looks at the memory of: of a state that is a lazy tensor, the plain one. New
/// reference.
PyObject* complete(PyObject* argument) {
  if (!THPVariable_Check(argument)) return Py_NewRef(argument);
  const at::Tensor& state = THPVariable_Unpack(argument);
  if (record::lazy_impl(state)) return THPVariable_Wrap(record::plain_of(state));
  if (const run::StorageVarRef var = run::plain_storages().find(state))
    record::current_recorder()->wait_for(*var);
  return Py_NewRef(argument);
}

template <size_t I>
PyObject* wait_then_call(PyObject* self, PyObject* args, PyObject* kwargs) {
  PyRef bound(PyTuple_New(1 + PyTuple_GET_SIZE(args)));
  if (!bound) return nullptr;
  PyTuple_SET_ITEM(bound.get(), 0, Py_NewRef(self));
  try {
    const bool ready = record::current_recorder();
    if (ready) record::current_recorder()->wait_for_generators();
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); ++i) {
      PyObject* const argument = PyTuple_GET_ITEM(args, i);
      PyTuple_SET_ITEM(bound.get(), i + 1, ready ? complete(argument) : Py_NewRef(argument));
    }
  } catch (...) {
    run::translate_to_python(std::current_exception());
    return nullptr;
  }
  return PyObject_Call(originals[I], bound.get(), kwargs);
}

template <size_t... I>
std::array<PyMethodDef, sizeof...(I)> make_methods(std::index_sequence<I...>) {
  return {PyMethodDef{
      kNames[I], reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&wait_then_call<I>)),
      METH_VARARGS | METH_KEYWORDS, nullptr}...};
}

}  // namespace

bool install_generator_hooks() {
  static auto methods = make_methods(std::make_index_sequence<kNames.size()>());
  auto* type = reinterpret_cast<PyTypeObject*>(THPGeneratorClass);
  PyObject* dict = type->tp_dict;
  for (size_t i = 0; i < kNames.size(); ++i) {
    PyObject* original = PyDict_GetItemString(dict, kNames[i]);
    if (!original) continue;  // this version of torch has no such method
    originals[i] = Py_NewRef(original);
    if (Py_IS_TYPE(original, &PyMethodDescr_Type))
      methods[i].ml_doc = reinterpret_cast<PyMethodDescrObject*>(original)->d_method->ml_doc;
    PyRef descriptor(PyDescr_NewMethod(type, &methods[i]));
    if (!descriptor || PyDict_SetItemString(dict, kNames[i], descriptor.get()) != 0) return false;
  }
  PyType_Modified(type);
  return true;
}

}  // namespace lazyeng
