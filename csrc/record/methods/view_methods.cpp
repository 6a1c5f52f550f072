// csrc/record/methods/view_methods.cpp: view methods of LazyTensor that torch builds from other
// ops.
//
// Each tells which op torch's decomposition would call with these arguments, if that is one view
// op; else torch.Tensor's method decides.
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/python_variable.h>

#include <array>
#include <utility>

#include "csrc/record/lazy_tensor.h"
#include "csrc/record/methods/direct.h"
#include "csrc/record/methods/slots.h"
#include "csrc/run/python_ref.h"

namespace lazyeng::record {
namespace {

using run::PyRef;

DirectOp view_op, slice_op, permute_op;  // written at import

bool is_ours(PyObject* object) { return Py_TYPE(object) == python_class(); }

PyRef integer(int64_t number) { return PyRef(PyLong_FromLongLong(number)); }

PyRef sizes_of(const at::Tensor& tensor) {
  PyRef sizes(PyTuple_New(tensor.dim()));
  for (int64_t i = 0; sizes && i < tensor.dim(); ++i)
    PyTuple_SET_ITEM(sizes.get(), i, PyLong_FromLongLong(tensor.size(i)));
  return sizes;
}

PyObject* view_with(PyObject* self, const PyRef& sizes) {
  PyObject* const args[] = {self, sizes.get()};
  return sizes ? record_directly(view_op, args, 2) : nullptr;
}

// Each of these: null without a Python error: torch.Tensor's method decides. self is a LazyTensor.

/// A contiguous tensor is viewed with the sizes as they came, -1 included.
PyObject* reshape(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count == 0 || count > 5 || !THPVariable_Unpack(self).is_contiguous()) return nullptr;
  std::array<PyObject*, 6> all{self};
  std::copy(args, args + count, all.begin() + 1);
  return record_directly(view_op, all.data(), 1 + count);
}

PyObject* flatten(PyObject* self, PyObject* const*, Py_ssize_t count) {
  const at::Tensor& tensor = THPVariable_Unpack(self);
  if (count != 0 || tensor.dim() < 2 || !tensor.is_contiguous()) return nullptr;
  const PyRef length = integer(tensor.numel());
  PyObject* const all[] = {self, length.get()};
  return record_directly(view_op, all, 2);
}

PyObject* view_as(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 1 || !is_ours(args[0])) return nullptr;
  return view_with(self, sizes_of(THPVariable_Unpack(args[0])));
}

PyObject* narrow(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 3) return nullptr;
  int64_t numbers[3];
  for (int i = 0; i < 3; ++i) {
    if (!PyLong_CheckExact(args[i])) return nullptr;
    int overflow = 0;
    numbers[i] = PyLong_AsLongLongAndOverflow(args[i], &overflow);
    if (overflow) return nullptr;
  }
  const auto [dim, start, length] = numbers;
  const at::Tensor& tensor = THPVariable_Unpack(self);
  if (dim < -tensor.dim() || dim >= tensor.dim() || start < 0 || length < 0) return nullptr;
  if (start > tensor.size(dim) || length > tensor.size(dim) - start) return nullptr;
  const PyRef end = integer(start + length), step = integer(1);
  PyObject* const all[] = {self, args[0], args[1], end.get(), step.get()};
  return record_directly(slice_op, all, 5);
}

PyObject* detach(PyObject* self, PyObject* const*, Py_ssize_t count) {
  return count == 0 ? detach_directly(self) : nullptr;
}

using Body = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t);
struct ViewMethod {
  const char* name;
  Body body;
};
constexpr ViewMethod kMethods[] = {{"reshape", reshape},
                                   {"flatten", flatten},
                                   {"view_as", view_as},
                                   {"narrow", narrow},
                                   {"detach", detach}};
constexpr size_t kCount = std::size(kMethods);
std::array<PyObject*, kCount> inherited;  // owned; written at import
std::array<PyMethodDef, kCount> definitions;

template <size_t i>
PyObject* entry(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  PyObject* result = names || !is_ours(self) ? nullptr : kMethods[i].body(self, args, count);
  if (result || PyErr_Occurred()) return result;
  return call_with_self(inherited[i], self, args, count, names);
}

template <size_t i>
bool install() {
  return install_method(kMethods[i].name,
                        reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&entry<i>)),
                        definitions[i], inherited[i]);
}

// ---- x.T

PyObject* inherited_transposed = nullptr;  // torch.Tensor's descriptor; owned

PyObject* transposed(PyObject* self, void*) {
  if (is_ours(self) && THPVariable_Unpack(self).dim() == 2) {
    static PyObject* const dims[] = {PyLong_FromLong(1), PyLong_FromLong(0)};
    PyObject* const args[] = {self, dims[0], dims[1]};
    PyObject* result = record_directly(permute_op, args, 3);
    if (result || PyErr_Occurred()) return result;
  }
  return Py_TYPE(inherited_transposed)
      ->tp_descr_get(inherited_transposed, self, reinterpret_cast<PyObject*>(Py_TYPE(self)));
}

bool install_transposed() {
  static PyGetSetDef definition{"T", transposed, nullptr, nullptr, nullptr};
  auto* cls = reinterpret_cast<PyObject*>(python_class());
  inherited_transposed =
      PyObject_GetAttrString(reinterpret_cast<PyObject*>(python_class()->tp_base), "T");
  const PyRef descriptor(PyDescr_NewGetSet(python_class(), &definition));
  return inherited_transposed && descriptor &&
         PyObject_SetAttrString(cls, "T", descriptor.get()) == 0;
}

template <size_t... i>
bool install_all(std::index_sequence<i...>) {
  return (install<i>() && ...);
}

}  // namespace

bool install_view_methods() {
  view_op = direct_op("aten::view", "", false);
  slice_op = direct_op("aten::slice", "Tensor", false);
  permute_op = direct_op("aten::permute", "", false);
  return install_all(std::make_index_sequence<kCount>()) && install_transposed();
}

}  // namespace lazyeng::record
