// csrc/bindings/tensors.cpp: functions of lazyeng._C about a tensor: wrapping it, reading it, what
// is known of it.
#include <ATen/PythonTorchFunctionTLS.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/python_variable.h>

#include "csrc/bindings/bindings.h"
#include "csrc/record/lazy_tensor.h"
#include "csrc/record/library.h"
#include "csrc/record/plain_views.h"
#include "csrc/record/process/first_use.h"
#include "csrc/record/recorder.h"
#include "csrc/record/special/components.h"
#include "csrc/run/caller/caller_modes.h"
#include "csrc/run/device/launch_log.h"
#include "csrc/run/executor.h"
#include "csrc/run/plain/plain_storage.h"
#include "csrc/run/plain/plain_values.h"
#include "csrc/run/python_ref.h"

namespace lazyeng::bindings {
namespace {

using record::current_recorder;
using run::PyRef;

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

/// (Of a normal tensor a normal one, also in inference mode: a model that is wrapped there may be
/// trained.)
PyObject* lazy_over(const at::Tensor& plain) {
  std::optional<c10::InferenceMode> normal;
  if (c10::InferenceMode::is_enabled() && !plain.is_inference()) normal.emplace(false);
  return record::python_object(record::make_lazy(run::new_value_of(plain)));
}

PyObject* wrap_tensor(PyObject*, PyObject* object) {
  return guarded([&]() -> PyObject* {
    TORCH_CHECK_TYPE(THPVariable_Check(object), "expected a tensor, got ",
                     Py_TYPE(object)->tp_name);
    const at::Tensor& tensor = THPVariable_Unpack(object);
    record::first_use();
    record::adopt_new_ops();
    if (record::lazy_impl(tensor)) return Py_NewRef(object);
    TORCH_CHECK_TYPE(!tensor._is_zerotensor(),
                     "lazyeng: expected a tensor with memory, got a ZeroTensor; wrap its clone()");
    TORCH_CHECK_TYPE(record::recordable(tensor),
                     "lazyeng: expected a strided tensor on cpu or cuda, got one of layout ",
                     tensor.layout(), " on ", tensor.device(),
                     tensor.is_quantized() ? ", quantized" : "");
    return lazy_over(tensor);
  });
}

/// Whether there is nothing about the tensor but its memory and its look: no part in autograd, and
/// nobody above autograd (modes, transforms) to hear of it.
bool is_bare(const at::Tensor& tensor) {
  const auto keys = c10::impl::tls_local_dispatch_key_set().included_;
  constexpr c10::DispatchKeySet listeners(
      {c10::DispatchKey::Python, c10::DispatchKey::FuncTorchDynamicLayerFrontMode});
  return !keys.has_any(listeners) && !tensor.requires_grad() &&
         !tensor.unsafeGetTensorImpl()->grad().defined();
}

/// wrap() of the common case: a plain tensor that is bare. None: it is something else.
PyObject* wrap_bare(PyObject*, PyObject* object) {
  if (reinterpret_cast<PyObject*>(Py_TYPE(object)) != THPVariableClass) Py_RETURN_NONE;
  return guarded([&]() -> PyObject* {
    const at::Tensor& tensor = THPVariable_Unpack(object);
    if (!is_bare(tensor) || !record::recordable(tensor) || record::lazy_impl(tensor))
      Py_RETURN_NONE;
    record::first_use();
    record::adopt_new_ops();
    return lazy_over(tensor);
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
    return THPVariable_Wrap(current_recorder()->hand_out(*value));
  });
}

PyObject* share_version(PyObject*, PyObject* const* args, Py_ssize_t) {
  return guarded([&]() -> PyObject* {
    const at::Tensor &from = THPVariable_Unpack(args[0]), &to = THPVariable_Unpack(args[1]);
    if (from.is_inference() || to.is_inference()) Py_RETURN_NONE;
    to.unsafeGetTensorImpl()->set_version_counter(from.unsafeGetTensorImpl()->version_counter());
    // (Writes through the plain one are not the engine's: pending reads have to be told of them.)
    if (const record::LazyImpl* lazy = record::lazy_impl(from))
      lazy->value()->var().note_plain_tensor(to);
    Py_RETURN_NONE;
  });
}

PyObject* share_history(PyObject*, PyObject* const* args, Py_ssize_t) {
  return guarded([&]() -> PyObject* {
    namespace impl = torch::autograd::impl;
    const at::Tensor &from = THPVariable_Unpack(args[0]), &to = THPVariable_Unpack(args[1]);
    impl::set_gradient_edge(to, impl::gradient_edge(from));
    Py_RETURN_NONE;
  });
}

PyObject* plain_view(PyObject*, PyObject* object) {
  return guarded([&] {
    const run::ValueRef value = value_of(object);  // (`.data =` of another thread may replace it)
    current_recorder()->wait_and_check(*value);
    return THPVariable_Wrap(record::plain_view(THPVariable_Unpack(object)));
  });
}

/// Whether it is a parameter: torch.nn.Parameter marks those of other classes so.
bool is_parameter(PyObject* object) {
  PyObject** const attributes = _PyObject_GetDictPtr(object);
  return attributes && *attributes && PyDict_GetItemString(*attributes, "_is_param");
}

/// unwrap() of the common case: a lazy tensor that is bare. None: it is something else.
PyObject* unwrap_bare(PyObject*, PyObject* object) {
  if (Py_TYPE(object) != record::python_class()) Py_RETURN_NONE;
  if (!is_bare(THPVariable_Unpack(object)) || is_parameter(object)) Py_RETURN_NONE;
  return plain(nullptr, object);
}

PyObject* values(PyObject*, PyObject* object) {
  return guarded([&] {
    const run::ValueRef value = value_of(object);
    current_recorder()->wait_and_check(*value);
    current_recorder()->wait_for_device(value->geometry().device());
    return THPVariable_Wrap(value->plain());
  });
}

PyObject* wait(PyObject*, PyObject* object) {
  return guarded([&] {
    const run::ValueRef value = value_of(object);
    current_recorder()->wait_and_check(*value);
    current_recorder()->wait_for_device(value->geometry().device());
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
    const c10::Device device = value->geometry().device();
    engine::FailurePtr failure = value->var().failure();
    if (!failure && !device.is_cpu()) {
      if (run::is_running(device, failure))
        return Py_BuildValue("ss", "pending", device.str().c_str());
    }
    if (!failure) return Py_BuildValue("ss", "ready", "");
    const run::FailureRoot& root = *static_cast<const run::OpFailure&>(*failure).root();
    std::string text = root.name;
    const std::string line = stacks::innermost_user_line(root.stack);
    if (!line.empty()) text += " @ " + line;
    return Py_BuildValue("ss", "failed", text.c_str());
  });
}

/// Whether a method may look at a plain tensor's memory at once.
PyObject* reads_directly(PyObject*, PyObject* object) {
  if (!THPVariable_Check(object)) Py_RETURN_TRUE;  // torch's own method says what it expects
  // A kernel in Python, run at the call: what it writes is pending until it ends.
  if (run::RealDispatch::active()) Py_RETURN_TRUE;
  const at::Tensor& tensor = THPVariable_Unpack(object);
  if (record::thread_mode().inside()) return PyBool_FromLong(record::lazy_impl(tensor) != nullptr);
  return PyBool_FromLong(!record::is_guarded(tensor));
}

/// call_eagerly(function, tensor, args, kwargs, reads): waits for recorded writes to the plain
/// tensor, then calls function(tensor, *args, **kwargs) as if outside lazy(). A failed write is
/// raised if its values are read.
PyObject* call_eagerly(PyObject*, PyObject* arguments) {
  PyObject *function = nullptr, *tensor = nullptr, *rest = nullptr, *kwargs = nullptr;
  int reads = 0;
  if (!PyArg_ParseTuple(arguments, "OOO!O!p", &function, &tensor, &PyTuple_Type, &rest,
                        &PyDict_Type, &kwargs, &reads))
    return nullptr;
  return guarded([&]() -> PyObject* {
    for (const run::StorageVarRef& var : record::vars_under(THPVariable_Unpack(tensor))) {
      current_recorder()->wait_for(*var);
      if (engine::FailurePtr failure = reads ? var->failure() : nullptr)
        run::throw_python_error(failure);
    }
    PyRef args(PyTuple_New(1 + PyTuple_GET_SIZE(rest)));
    if (!args) return nullptr;
    PyTuple_SET_ITEM(args.get(), 0, Py_NewRef(tensor));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(rest); ++i)
      PyTuple_SET_ITEM(args.get(), i + 1, Py_NewRef(PyTuple_GET_ITEM(rest, i)));
    const record::OutsideBlock outside;
    return PyObject_Call(function, args.get(), kwargs);
  });
}

/// Nobody's Python code is called when one of torch's own methods of C looks at the tensor.
bool is_read_by_torch_alone(PyObject* object) {
  return THPVariable_CheckExact(object) && record::recordable(THPVariable_Unpack(object)) &&
         !at::impl::torch_function_mode_enabled() &&
         !c10::impl::TorchDispatchModeTLS::any_modes_set();
}

/// read_memory(method, tensor): as call_eagerly, of one of torch's own methods of C that looks at
/// the memory: past all that records, where that is enough, so that the block need not be left.
PyObject* read_memory(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    TORCH_CHECK_TYPE(count == 2 && THPVariable_Check(args[1]), "expected a method and a tensor");
    if (run::StorageVarRef var = run::plain_storages().find(THPVariable_Unpack(args[1]))) {
      current_recorder()->wait_for(*var);
      if (engine::FailurePtr failure = var->failure()) run::throw_python_error(failure);
    }
    if (is_read_by_torch_alone(args[1])) {
      const run::RealDispatch below;
      return PyObject_CallOneArg(args[0], args[1]);
    }
    const record::OutsideBlock outside;
    return PyObject_CallOneArg(args[0], args[1]);
  });
}

bool is_list_of_tensors(PyObject* object, Py_ssize_t length) {
  if (!PyList_Check(object) || PyList_GET_SIZE(object) != length) return false;
  for (Py_ssize_t i = 0; i < length; ++i)
    if (!THPVariable_Check(PyList_GET_ITEM(object, i))) return false;
  return true;
}

bool lies_like(const at::Tensor& tensor, const at::Tensor& other) {
  return tensor.layout() == c10::kStrided && tensor.device() == other.device() &&
         tensor.scalar_type() == other.scalar_type() && tensor.sizes() == other.sizes() &&
         tensor.strides() == other.strides();
}

PyObject* lie_alike(PyObject*, PyObject* const* lists, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    const Py_ssize_t length = count > 0 && PyList_Check(lists[0]) ? PyList_GET_SIZE(lists[0]) : 0;
    for (Py_ssize_t l = 0; l < count; ++l)
      TORCH_CHECK_TYPE(is_list_of_tensors(lists[l], length),
                       "expected lists of tensors that are equally long");
    const auto at = [&](Py_ssize_t list, Py_ssize_t place) -> const at::Tensor& {
      return THPVariable_Unpack(PyList_GET_ITEM(lists[list], place));
    };
    for (Py_ssize_t i = 0; i < length; ++i) {
      const at::Tensor &first = at(0, 0), &of_place = at(0, i);
      if (of_place.device() != first.device() || of_place.scalar_type() != first.scalar_type() ||
          of_place.layout() != c10::kStrided || !of_place.is_non_overlapping_and_dense())
        Py_RETURN_FALSE;
      for (Py_ssize_t l = 1; l < count; ++l)
        if (!lies_like(at(l, i), of_place)) Py_RETURN_FALSE;
    }
    Py_RETURN_TRUE;
  });
}

}  // namespace

PyMethodDef tensor_methods[] = {
    {"wrap_tensor", wrap_tensor, METH_O, nullptr},
    {"wrap_bare", wrap_bare, METH_O, nullptr},
    {"unwrap_bare", unwrap_bare, METH_O, nullptr},
    {"is_lazy", is_lazy, METH_O, nullptr},
    {"lie_alike", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(lie_alike)),
     METH_FASTCALL, nullptr},
    {"plain", plain, METH_O, nullptr},
    {"share_version", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(share_version)),
     METH_FASTCALL, nullptr},
    {"share_history", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(share_history)),
     METH_FASTCALL, nullptr},
    {"plain_view", plain_view, METH_O, nullptr},
    {"values", values, METH_O, nullptr},
    {"wait", wait, METH_O, nullptr},
    {"is_ready", is_ready, METH_O, nullptr},
    {"status", status, METH_O, nullptr},
    {"reads_directly", reads_directly, METH_O, nullptr},
    {"call_eagerly", call_eagerly, METH_VARARGS, nullptr},
    {"read_memory", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(read_memory)),
     METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace lazyeng::bindings
