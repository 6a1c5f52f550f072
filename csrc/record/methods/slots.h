// csrc/record/methods/slots.h: C slots and methods of the class LazyTensor for the hot operators
// and methods.
//
// Each records directly (direct.h) if it can, and else does what torch.Tensor has for it. Results,
// errors and what is recorded are the same either way.
#pragma once

#include <Python.h>

namespace lazyeng::record {

/// Operators: + - * / @ ** comparisons, in-place ones, subscripts. After set_python_class and
/// register_kernels. False with a Python error set.
bool install_slots();
/// Methods: x.relu(), x.sum(0), x.view(-1) ...
bool install_methods();
/// Views that torch builds from other ops: x.reshape(-1), x.T, x.detach() ...
bool install_view_methods();
/// Numbers that are read: x.item(), bool(x), float(x), int(x), x as an index (read_methods.cpp).
bool install_read_methods();
/// What torch asks a subclass about overriding its functions (overrides.cpp).
bool install_overrides();

// For the above: a C method in LazyTensor's dict in front of torch.Tensor's, which is kept.
/// `definition` and `inherited` live as long as the process. False with a Python error set.
bool install_method(const char* name, PyCFunction function, PyMethodDef& definition,
                    PyObject*& inherited);
/// inherited(self, *args, **kwargs), arguments as METH_FASTCALL | METH_KEYWORDS has them.
PyObject* call_with_self(PyObject* inherited, PyObject* self, PyObject* const* args,
                         Py_ssize_t count, PyObject* names);

}  // namespace lazyeng::record
