// csrc/bindings/memory.cpp: functions of lazyeng._C about memory that others have, too: numpy and
// other libraries, aliases, storages, and writes that the program announces.
#include <torch/csrc/Storage.h>
#include <torch/csrc/autograd/python_variable.h>

#include <memory>

#include "csrc/bindings/bindings.h"
#include "csrc/record/lazy_tensor.h"
#include "csrc/record/process/gate.h"
#include "csrc/record/recorder.h"
#include "csrc/record/thread_mode.h"
#include "csrc/run/caller/caller_modes.h"
#include "csrc/run/executor.h"
#include "csrc/run/plain/own_writes.h"
#include "csrc/run/plain/plain_storage.h"
#include "csrc/run/plain/unseen_writers.h"

namespace lazyeng::bindings {
namespace {

using record::current_recorder;

/// Whether nobody but the program's threads is in there, and the tensor is one that eager code has.
bool is_handed_out(const at::Tensor& tensor) {
  return !record::lazy_impl(tensor) && record::recordable(tensor) && tensor.is_cpu() &&
         !run::RealDispatch::active() && !record::Gate::is_inside();
}

/// What was recorded has read the memory before others get it.
void finish_accesses(const at::Tensor& tensor) {
  if (const run::StorageVarRef var = run::plain_storages().find(tensor))
    current_recorder()->finish_accesses(*var);
}

/// before_lending(tensor): its memory is about to be given to others.
PyObject* before_lending(PyObject*, PyObject* object) {
  if (!THPVariable_Check(object)) Py_RETURN_NONE;  // torch refuses it
  return guarded([&]() -> PyObject* {
    const at::Tensor& tensor = THPVariable_Unpack(object);
    if (is_handed_out(tensor)) finish_accesses(tensor);
    Py_RETURN_NONE;
  });
}

/// lent(handle): for as long as this tensor lives, others have its memory.
PyObject* lent(PyObject*, PyObject* handle) {
  return guarded([&]() -> PyObject* {
    const at::Tensor& tensor = THPVariable_Unpack(handle);
    if (is_handed_out(tensor)) run::lendings().lend(tensor.storage(), tensor);
    Py_RETURN_NONE;
  });
}

/// lend(tensor): the tensor that another library's tensor is to be made of: another one over the
/// same memory, which dies with that.
PyObject* lend(PyObject*, PyObject* object) {
  if (!THPVariable_CheckExact(object)) return Py_NewRef(object);
  return guarded([&]() -> PyObject* {
    const at::Tensor& tensor = THPVariable_Unpack(object);
    // (torch refuses one that requires grad.)
    if (!is_handed_out(tensor) || tensor.requires_grad()) return Py_NewRef(object);
    const at::Tensor handle(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(
        tensor.unsafeGetTensorImpl()->version_counter(), /*allow_tensor_metadata_change=*/true));
    finish_accesses(tensor);
    run::lendings().lend(tensor.storage(), handle);
    return THPVariable_Wrap(handle);
  });
}

/// tell_address(tensor): somebody asks for the address of its memory.
PyObject* tell_address(PyObject*, PyObject* object) {
  if (!THPVariable_Check(object)) Py_RETURN_NONE;  // torch refuses it
  return guarded([&]() -> PyObject* {
    const at::Tensor& tensor = THPVariable_Unpack(object);
    if (!is_handed_out(tensor)) Py_RETURN_NONE;
    run::lendings().tell_address(tensor.storage());
    finish_accesses(tensor);
    Py_RETURN_NONE;
  });
}

/// note_alias(tensor, alias): `alias` is over the same memory, with a version counter of its own.
/// (A class of the program's may make anything of either.)
PyObject* note_alias(PyObject*, PyObject* arguments) {
  PyObject *object = nullptr, *other = nullptr;
  if (!PyArg_ParseTuple(arguments, "OO", &object, &other)) return nullptr;
  if (!THPVariable_Check(object) || !THPVariable_Check(other)) Py_RETURN_NONE;
  return guarded([&]() -> PyObject* {
    const at::Tensor& tensor = THPVariable_Unpack(object);
    if (!is_handed_out(tensor)) Py_RETURN_NONE;
    const at::Tensor& alias = THPVariable_Unpack(other);
    run::lendings().note_alias(tensor.storage(), alias);
    if (const run::StorageVarRef var = run::plain_storages().find(tensor))
      var->note_plain_tensor(alias);
    Py_RETURN_NONE;
  });
}

/// follow_storage(untyped_storage): the storage may have moved to other memory: the engine follows.
/// False if the engine does not know it.
PyObject* follow_storage(PyObject*, PyObject* object) {
  return guarded([&] {
    TORCH_CHECK_TYPE(THPStorage_Check(object), "expected a storage, got ",
                     Py_TYPE(object)->tp_name);
    const run::StorageVarRef var = run::plain_storages().find(THPStorage_Unpack(object));
    if (var) run::plain_storages().follow_resize(*var, /*through_user_face=*/true);
    return PyBool_FromLong(static_cast<bool>(var));
  });
}

/// finish_uses(tensor): nothing recorded uses the memory of a plain tensor any more. Not in blocks,
/// where what comes next is recorded too, nor in kernels, which are such uses.
PyObject* finish_uses(PyObject*, PyObject* object) {
  return guarded([&]() -> PyObject* {
    const bool plain = THPVariable_Check(object) && !record::lazy_impl(THPVariable_Unpack(object));
    if (!plain || record::thread_mode().inside() || run::RealDispatch::active() ||
        run::InCustomKernel::active())
      Py_RETURN_NONE;
    if (const run::StorageVarRef var = run::plain_storages().find(THPVariable_Unpack(object)))
      current_recorder()->finish_accesses(*var);
    Py_RETURN_NONE;
  });
}

/// complete_storage(untyped_storage, writes): somebody is about to look at the memory, or to write
/// it.
PyObject* complete_storage(PyObject*, PyObject* arguments) {
  PyObject* object = nullptr;
  int writes = 0;
  if (!PyArg_ParseTuple(arguments, "Op", &object, &writes)) return nullptr;
  return guarded([&]() -> PyObject* {
    TORCH_CHECK_TYPE(THPStorage_Check(object), "expected a storage, got ",
                     Py_TYPE(object)->tp_name);
    if (run::RealDispatch::active()) Py_RETURN_NONE;
    const run::StorageVarRef var = run::plain_storages().find(THPStorage_Unpack(object));
    if (var && writes) current_recorder()->finish_accesses(*var);
    if (var) current_recorder()->wait_for(*var);
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

using Bump = std::shared_ptr<run::TrackedVersion>;

void forget_bump(PyObject* capsule) {
  delete static_cast<Bump*>(PyCapsule_GetPointer(capsule, nullptr));
}

/// expect_bump(tensor): what it returns is to be kept until the counter has moved. None outside
/// lazy() and of lazy tensors, whose counters nobody compares.
PyObject* expect_bump(PyObject*, PyObject* object) {
  return guarded([&]() -> PyObject* {
    const at::Tensor& tensor = THPVariable_Unpack(object);
    if (record::lazy_impl(tensor) || !record::thread_mode().inside()) Py_RETURN_NONE;
    auto bump = std::make_unique<Bump>(run::expect_bump(tensor));
    PyObject* capsule = PyCapsule_New(bump.get(), nullptr, &forget_bump);
    if (capsule) bump.release();
    return capsule;
  });
}

}  // namespace

PyMethodDef memory_methods[] = {
    {"before_lending", before_lending, METH_O, nullptr},
    {"lent", lent, METH_O, nullptr},
    {"lend", lend, METH_O, nullptr},
    {"tell_address", tell_address, METH_O, nullptr},
    {"note_alias", note_alias, METH_VARARGS, nullptr},
    {"follow_storage", follow_storage, METH_O, nullptr},
    {"finish_uses", finish_uses, METH_O, nullptr},
    {"complete_storage", complete_storage, METH_VARARGS, nullptr},
    {"announce_own_write", announce_own_write, METH_O, nullptr},
    {"expect_bump", expect_bump, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace lazyeng::bindings
