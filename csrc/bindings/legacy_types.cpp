// csrc/bindings/legacy_types.cpp: isinstance(x, torch.FloatTensor) of a lazy tensor.
#include "csrc/bindings/legacy_types.h"

#include <torch/csrc/autograd/python_variable.h>

#include "csrc/record/lazy_tensor.h"
#include "csrc/run/python_ref.h"

namespace lazyeng {
namespace {

using run::PyRef;

constexpr const char* kName = "__instancecheck__";
PyObject* original = nullptr;  // torch's method, owned

PyObject* instance_check(PyObject* type, PyObject* object) {
  if (!THPVariable_Check(object) || !record::lazy_impl(THPVariable_Unpack(object)))
    return PyObject_CallFunctionObjArgs(original, type, object, nullptr);
  const PyRef name(PyObject_CallMethod(THPVariableClass, "type", "O", object));
  if (!name) return nullptr;
  const char* expected = reinterpret_cast<PyTypeObject*>(type)->tp_name;
  return PyBool_FromLong(PyUnicode_CompareWithASCIIString(name.get(), expected) == 0);
}

PyMethodDef method = {kName, instance_check, METH_O, nullptr};

}  // namespace

bool install_legacy_types() {
  const PyRef torch(PyImport_ImportModule("torch"));
  if (!torch) return false;
  const PyRef legacy(PyObject_GetAttrString(torch.get(), "FloatTensor"));
  if (!legacy) return false;
  PyTypeObject* metaclass = Py_TYPE(legacy.get());
  PyObject* found = PyDict_GetItemString(metaclass->tp_dict, kName);
  if (!found) return true;  // this version of torch does without
  original = Py_NewRef(found);
  const PyRef descriptor(PyDescr_NewMethod(metaclass, &method));
  if (!descriptor || PyDict_SetItemString(metaclass->tp_dict, kName, descriptor.get()) != 0)
    return false;
  PyType_Modified(metaclass);
  return true;
}

}  // namespace lazyeng
