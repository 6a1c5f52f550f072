// csrc/record/methods/read_methods.cpp: methods of LazyTensor that read one number.
//
// lazyeng/tensor.py reads through a plain tensor over the memory, whose methods know every case.
// Here one number of a common dtype in the CPU's memory is taken from where it lies, which costs a
// tenth of that. What is something else, and what has failed, is left to the methods there.
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <torch/csrc/autograd/python_variable.h>

#include <atomic>
#include <optional>
#include <string>
#include <variant>

#include "csrc/record/lazy_tensor.h"
#include "csrc/record/methods/slots.h"
#include "csrc/record/process/gate.h"
#include "csrc/record/recorder.h"
#include "csrc/record/sync_debug.h"
#include "csrc/run/executor.h"
#include "csrc/run/failures/ignored_warnings.h"
#include "csrc/run/failures/python_error.h"
#include "csrc/run/plain/plain_storage.h"
#include "csrc/run/python_ref.h"

namespace lazyeng::record {
namespace {

using Number = std::variant<bool, int64_t, double>;

template <class T>
T load(const void* from) {
  return *static_cast<const T*>(from);
}

std::optional<Number> load(const void* from, c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Bool:
      return load<bool>(from);
    case c10::ScalarType::Byte:
      return static_cast<int64_t>(load<uint8_t>(from));
    case c10::ScalarType::Char:
      return static_cast<int64_t>(load<int8_t>(from));
    case c10::ScalarType::Short:
      return static_cast<int64_t>(load<int16_t>(from));
    case c10::ScalarType::Int:
      return static_cast<int64_t>(load<int32_t>(from));
    case c10::ScalarType::Long:
      return load<int64_t>(from);
    case c10::ScalarType::Half:
      return static_cast<double>(load<c10::Half>(from));
    case c10::ScalarType::BFloat16:
      return static_cast<double>(load<c10::BFloat16>(from));
    case c10::ScalarType::Float:
      return static_cast<double>(load<float>(from));
    case c10::ScalarType::Double:
      return load<double>(from);
    default:
      return std::nullopt;
  }
}

/// Of a value that is there.
std::optional<Number> number_in(const run::Value& value) {
  const run::Geometry& look = value.geometry();
  run::StorageVar& var = value.var();
  const c10::ScalarType dtype = look.dtype();
  if (look.numel() != 1 || !look.device().is_cpu() || look.data().conj || look.data().neg ||
      var.failure() || !var.engine_face() || run::plain_storages().has_moved(var))
    return std::nullopt;
  const auto* memory = static_cast<const char*>(var.engine_face().data());
  if (!memory) return std::nullopt;
  return load(memory + look.offset() * static_cast<int64_t>(c10::elementSize(dtype)), dtype);
}

/// Reading is the same under autocast and in inference mode, and autograd is not asked. (What else
/// wants to see the call has a dispatch key, or is asked for here.)
bool reads_as_usual() {
  static const c10::impl::LocalDispatchKeySet usual(c10::impl::PODLocalDispatchKeySet{0, 0});
  static const c10::DispatchKeySet changed =
      c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset |
      c10::DispatchKeySet({c10::DispatchKey::ADInplaceOrView, c10::DispatchKey::PrivateUse1});
  // (Taking keys away leaves their backends.)
  const auto others = [](c10::DispatchKeySet keys) {
    return (keys - changed).remove_backend(c10::BackendComponent::PrivateUse1Bit);
  };
  const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  return others(keys.included_) == others(usual.included_) &&
         others(keys.excluded_) == others(usual.excluded_) && Gate::is_open() &&
         thread_mode().mode != Mode::sync && !at::impl::torch_function_mode_enabled() &&
         !at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION).has_value();
}

/// Waits for the number. Null: it is not for us to read; with a Python error if the wait was
/// interrupted.
std::optional<Number> read_number(PyObject* self) {
  if (Py_TYPE(self) != python_class() || !reads_as_usual()) return std::nullopt;
  if (waits_are_heard_of()) return std::nullopt;  // the report says which method waits
  const LazyImpl* lazy = lazy_impl(THPVariable_Unpack(self));
  if (!lazy || lazy->resized_outside() || lazy->value()->geometry().numel() != 1)
    return std::nullopt;
  try {
    const run::ValueRef value = lazy->value();
    current_recorder()->wait_for(value->var());
    std::optional<Number> number = number_in(*value);
    if (number) value->var().values_read.store(true, std::memory_order_relaxed);
    return number;
  } catch (...) {
    run::translate_to_python(std::current_exception());
    return std::nullopt;
  }
}

// ---- as objects of Python

struct AsItem {
  PyObject* operator()(bool number) const { return PyBool_FromLong(number); }
  PyObject* operator()(int64_t number) const { return PyLong_FromLongLong(number); }
  PyObject* operator()(double number) const { return PyFloat_FromDouble(number); }
};

struct AsInt {
  PyObject* operator()(bool number) const { return PyLong_FromLong(number); }
  PyObject* operator()(int64_t number) const { return PyLong_FromLongLong(number); }
  PyObject* operator()(double number) const { return PyLong_FromDouble(number); }
};

bool is_true(const Number& number) {
  return std::visit([](auto value) { return value != decltype(value){}; }, number);
}

double as_double(const Number& number) {
  return std::visit([](auto value) { return static_cast<double>(value); }, number);
}

// ---- the methods; inherited: those of lazyeng/tensor.py

PyObject* inherited_item = nullptr;  // owned
inquiry inherited_bool = nullptr;
unaryfunc inherited_float = nullptr, inherited_int = nullptr, inherited_index = nullptr;

PyObject* item(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  if (count == 0 && !names) {
    if (const std::optional<Number> number = read_number(self))
      return std::visit(AsItem(), *number);
    if (PyErr_Occurred()) return nullptr;
  }
  return call_with_self(inherited_item, self, args, count, names);
}

int bool_slot(PyObject* self) {
  if (const std::optional<Number> number = read_number(self)) return is_true(*number);
  return PyErr_Occurred() ? -1 : inherited_bool(self);
}

/// What torch says, once in a process, where a float that autograd knows of is taken from it: of a
/// plain tensor, as the text names a line of torch's. False with a Python error if that is one.
bool warns_of_grad(PyObject* self) {
  static std::atomic<bool> warned{false};
  if (!THPVariable_Unpack(self).requires_grad() || !c10::GradMode::is_enabled()) return true;
  if (warned.exchange(true) && !run::warns_always()) return true;
  const run::RealDispatch below;
  const run::PyRef plain(THPVariable_Wrap(at::zeros({}).requires_grad_()));
  return plain && run::PyRef(PyNumber_Float(plain.get()));
}

PyObject* float_slot(PyObject* self) {
  if (!warns_of_grad(self)) return nullptr;
  if (const std::optional<Number> number = read_number(self))
    return PyFloat_FromDouble(as_double(*number));
  return PyErr_Occurred() ? nullptr : inherited_float(self);
}

PyObject* int_slot(PyObject* self) {
  if (const std::optional<Number> number = read_number(self)) return std::visit(AsInt(), *number);
  return PyErr_Occurred() ? nullptr : inherited_int(self);
}

PyObject* index_slot(PyObject* self) {
  // (What is not an integer is refused there.)
  if (!c10::isIntegralType(THPVariable_Unpack(self).scalar_type(), /*includeBool=*/true))
    return inherited_index(self);
  if (const std::optional<Number> number = read_number(self)) return std::visit(AsInt(), *number);
  return PyErr_Occurred() ? nullptr : inherited_index(self);
}

bool install_item() {
  auto* cls = reinterpret_cast<PyObject*>(python_class());
  inherited_item = PyObject_GetAttrString(cls, "item");
  if (!inherited_item) return false;
  const run::PyRef doc(PyObject_GetAttrString(inherited_item, "__doc__"));
  if (!doc) return false;
  // (The head is what inspect.signature() reads.)
  static std::string text;
  text = "item($self, /)\n--\n\n";
  if (PyUnicode_Check(doc.get())) text += PyUnicode_AsUTF8(doc.get());
  static PyMethodDef definition{"item",
                                reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&item)),
                                METH_FASTCALL | METH_KEYWORDS, nullptr};
  definition.ml_doc = text.c_str();
  const run::PyRef descriptor(PyDescr_NewMethod(python_class(), &definition));
  return descriptor && PyObject_SetAttrString(cls, "item", descriptor.get()) == 0;
}

}  // namespace

bool install_read_methods() {
  if (!install_item()) return false;
  PyNumberMethods& number = *python_class()->tp_as_number;
  inherited_bool = std::exchange(number.nb_bool, bool_slot);
  inherited_float = std::exchange(number.nb_float, float_slot);
  inherited_int = std::exchange(number.nb_int, int_slot);
  inherited_index = std::exchange(number.nb_index, index_slot);
  return true;
}

}  // namespace lazyeng::record
