// csrc/record/methods/direct.cpp: when the dispatcher can be passed by, and the call then.
#include "csrc/record/methods/direct.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/ScalarOps.h>
#include <ATen/record_function.h>
#include <c10/core/AutogradState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/python_variable.h>

#include <bit>

#include "csrc/engine/reserve.h"
#include "csrc/record/forward_stacks.h"
#include "csrc/record/lazy_tensor.h"
#include "csrc/record/library.h"
#include "csrc/record/methods/subscripts.h"
#include "csrc/record/process/gate.h"
#include "csrc/record/recorder.h"
#include "csrc/record/special/factories.h"
#include "csrc/run/failures/python_error.h"
#include "csrc/run/plain/plain_storage.h"
#include "csrc/run/plain/plain_values.h"

namespace lazyeng::record {
namespace {

/// Neither conjugate, negative, an inference tensor nor of a mode's: the keys that a lazy tensor is
/// born with.
bool ordinary_keys(const c10::TensorImpl& impl) {
  static const auto keys = [](c10::DispatchKey autocast) {
    return c10::DispatchKeySet({c10::DispatchKey::PrivateUse1, c10::DispatchKey::ADInplaceOrView,
                                c10::DispatchKey::AutogradPrivateUse1, autocast});
  };
  static const c10::DispatchKeySet cpu = keys(c10::DispatchKey::AutocastCPU);
  static const c10::DispatchKeySet cuda = keys(c10::DispatchKey::AutocastCUDA);
  return impl.key_set() == cpu || impl.key_set() == cuda;
}

/// Of a tensor in the CPU's memory that is neither conjugate, negative, an inference tensor nor of
/// a mode's.
c10::DispatchKeySet plain_keys() {
  static const c10::DispatchKeySet keys({c10::DispatchKey::CPU, c10::DispatchKey::ADInplaceOrView,
                                         c10::DispatchKey::AutogradCPU,
                                         c10::DispatchKey::AutocastCPU});
  return keys;
}

/// Autograd has no business with the tensor in this call.
bool without_grad(const at::Tensor& tensor, bool viewed_or_written) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (!torch::autograd::impl::get_autograd_meta(tensor)) return true;
  if (impl->requires_grad() && (viewed_or_written || c10::GradMode::is_enabled())) return false;
  return !tensor._fw_grad(/*level=*/0).defined();
}

/// Python numbers as tensors. Nobody writes to these, so calls share them. Guarded by the GIL.
struct WrappedNumber {
  c10::IValue number;
  at::Tensor tensor;
  run::GeometryRef look;
};

uint64_t bits_of(const c10::IValue& number) {
  if (number.isDouble()) return std::bit_cast<uint64_t>(number.toDouble());
  return static_cast<uint64_t>(number.isInt() ? number.toInt() : number.toBool());
}

const WrappedNumber& wrapped(const c10::IValue& number) {
  static auto* const known = new std::array<WrappedNumber, 64>;
  const uint64_t bits = bits_of(number);
  WrappedNumber& slot = (*known)[(bits * 0x9E3779B97F4A7C15ull + number.isDouble()) >> 58];
  if (slot.number.tagKind() == number.tagKind() && slot.tensor.defined() &&
      bits_of(slot.number) == bits)
    return slot;
  slot.tensor = at::scalar_to_tensor(number.toScalar());
  slot.tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  slot.look = run::geometry_of(slot.tensor);
  slot.number = number;
  return slot;
}

/// None if it is not one that torch would take without asking further.
c10::IValue number_of(PyObject* object) {
  if (PyBool_Check(object)) return object == Py_True;
  if (PyFloat_CheckExact(object)) return PyFloat_AS_DOUBLE(object);
  if (!PyLong_CheckExact(object)) return {};
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(object, &overflow);
  return overflow ? c10::IValue() : c10::IValue(static_cast<int64_t>(number));
}

/// Fills a call from Python arguments; false from any step: take the ordinary way.
class Binder {
 public:
  Binder(const DirectOp& op, Call& call) : op_(op), call_(call) {}

  bool bind(PyObject* const* args, size_t count, PyObject* names) {
    const size_t named = names ? static_cast<size_t>(PyTuple_GET_SIZE(names)) : 0;
    size_t next = 0, found = 0;
    for (size_t p = 0; p < op_.parameters.size(); ++p) {
      const Parameter& parameter = op_.parameters[p];
      const run::ArgInfo& info = op_.info->args[p];
      if (next < count && !parameter.keyword_only) {
        if (parameter.rest && count - next > 1) {
          if (!integers(args + next, count - next)) return false;
          next = count;
        } else if (!argument(parameter, info, args[next++])) {
          return false;
        }
        continue;
      }
      const size_t k = named ? find(parameter, names, named) : named;
      if (k < named) {
        ++found;
        if (!argument(parameter, info, args[count + k])) return false;
      } else if (parameter.required) {
        return false;
      } else {
        absent(parameter, info);
      }
    }
    return next == count && found == named;  // (other names, and a name twice, are torch's errors)
  }

 private:
  /// Where the parameter's name stands; `named` if it is not there.
  static size_t find(const Parameter& parameter, PyObject* names, size_t named) {
    size_t k = 0;
    while (k < named && PyTuple_GET_ITEM(names, k) != parameter.name) ++k;
    return k;
  }

  void absent(const Parameter& parameter, const run::ArgInfo& info) {
    call_.args.push_back(parameter.absent);
    if (info.kind != run::ArgKind::tensor) return;
    call_.tensors.emplace_back();
    call_.looks.emplace_back();
  }

  bool argument(const Parameter& parameter, const run::ArgInfo& info, PyObject* object) {
    if (Py_TYPE(object) == python_class())
      return parameter.take <= Take::tensor_or_number && tensor(info, THPVariable_Unpack(object));
    if (THPVariable_CheckExact(object))  // torch's own class, or its Parameter
      return parameter.take <= Take::tensor_or_number && plain(info, THPVariable_Unpack(object));
    switch (parameter.take) {
      case Take::integers:
        if (PyTuple_CheckExact(object) || PyList_CheckExact(object))
          return integers(PySequence_Fast_ITEMS(object), PySequence_Fast_GET_SIZE(object));
        return integers(&object, 1);
      case Take::boolean:
        return PyBool_Check(object) && number(object);
      case Take::integer:
        return PyLong_CheckExact(object) && number(object);
      case Take::scalar:
        return number(object);
      case Take::tensor_or_number:
        return wrapped_number(info, object);
      default:
        return false;
    }
  }

  bool tensor(const run::ArgInfo& info, const at::Tensor& tensor) {
    LazyImpl* lazy = lazy_impl(tensor);
    if (!lazy || lazy->resized_outside() || !ordinary_keys(*lazy) ||
        !without_grad(tensor, op_.view || info.write) ||
        run::plain_storages().has_moved(lazy->value()->var()))
      return false;
    run::TensorArg& arg = call_.tensors.emplace_back();
    arg.value = lazy->value();
    arg.written = info.write;
    arg.overwritten = info.overwritten;
    arg.another_object = is_written_through_another(call_, *lazy);
    if (info.write) call_.written.push_back(tensor);
    call_.looks.push_back(lazy->value()->geometry_ref());
    call_.args.emplace_back();
    return true;
  }

  /// (Outside lazy() plain numbers are copied, and nobody is in a hurry.)
  bool plain(const run::ArgInfo& info, const at::Tensor& tensor) {
    if (info.write || op_.view || !thread_mode().inside() ||
        tensor.unsafeGetTensorImpl()->key_set() != plain_keys() || !recordable(tensor) ||
        !without_grad(tensor, false))
      return false;
    run::TensorArg& arg = call_.tensors.emplace_back();
    arg.value = run::plain_values().value_of(tensor);
    call_.looks.push_back(arg.value->geometry_ref());
    call_.args.emplace_back();
    return true;
  }

  bool wrapped_number(const run::ArgInfo& info, PyObject* object) {
    const c10::IValue value = number_of(object);
    if (value.isNone() || info.write) return false;
    const WrappedNumber& number = wrapped(value);
    call_.tensors.emplace_back().raw = number.tensor;
    call_.looks.push_back(number.look);
    call_.args.emplace_back();
    return true;
  }

  bool number(PyObject* object) {
    call_.args.push_back(number_of(object));
    return !call_.args.back().isNone();
  }

  bool integers(PyObject* const* items, size_t count) {
    c10::List<int64_t> list;
    list.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      if (!PyLong_CheckExact(items[i])) return false;
      int overflow = 0;
      list.push_back(PyLong_AsLongLongAndOverflow(items[i], &overflow));
      if (overflow) return false;
    }
    call_.args.emplace_back(std::move(list));
    return true;
  }

  const DirectOp& op_;
  Call& call_;
};

Take take_of(const c10::Argument& argument, const run::ArgInfo& info, bool numbers) {
  if (info.kind == run::ArgKind::tensor)
    return numbers && !info.write ? Take::tensor_or_number : Take::tensor;
  const c10::TypePtr type = run::without_optional(argument.real_type());
  switch (type->kind()) {
    case c10::TypeKind::NumberType:
      return Take::scalar;
    case c10::TypeKind::BoolType:
      return Take::boolean;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return Take::integer;
    case c10::TypeKind::ListType:
      break;
    default:
      return Take::nothing;
  }
  const c10::TypeKind element = type->castRaw<c10::ListType>()->getElementType()->kind();
  const bool ints = element == c10::TypeKind::IntType || element == c10::TypeKind::SymIntType;
  return ints ? Take::integers : Take::nothing;
}

/// Views then have to say how they are made.
bool replays_views() { return c10::AutogradState::get_tls_state().get_view_replay_enabled(); }

/// What torch's ADInplaceOrView kernels do around a view or an in-place op.
at::Tensor as_view_of(const at::Tensor& base, const at::Tensor& view) {
  using torch::autograd::CreationMeta;
  return torch::autograd::as_view(
      base, view, /*is_bw_differentiable=*/true, /*is_fw_differentiable=*/true, nullptr, nullptr,
      c10::GradMode::is_enabled() ? CreationMeta::DEFAULT : CreationMeta::NO_GRAD_MODE);
}

}  // namespace

namespace {

/// The keys of a thread that nothing was done to.
const c10::impl::LocalDispatchKeySet& usual_keys() {
  static const c10::impl::LocalDispatchKeySet usual(c10::impl::PODLocalDispatchKeySet{0, 0});
  return usual;
}

/// What is called from Python records within it. Null: not taken, or, if an error is set, it is
/// Python's now.
template <class Body>
PyObject* directly(Body&& body) {
  if (!engine::fill_reserve()) return nullptr;
  const engine::Owing owing;
  try {
    return body();
  } catch (...) {
    run::translate_to_python(std::current_exception());
    return nullptr;
  }
}

}  // namespace

bool nobody_watches_calls() {
  static const c10::DispatchKeySet lazy = usual_keys().included_.add(c10::DispatchKey::PrivateUse1);
  const c10::DispatchKeySet included = c10::impl::tls_local_dispatch_key_set().included_;
  return Gate::is_open() && (included == lazy || included == usual_keys().included_) &&
         thread_mode().mode != Mode::sync &&
         !at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION).has_value();
}

bool ordinary_thread() {
  return c10::impl::tls_local_dispatch_key_set().excluded_ == usual_keys().excluded_ &&
         !at::impl::torch_function_mode_enabled() && nobody_watches_calls();
}

DirectOp direct_op(const char* name, const char* overload, bool numbers) {
  DirectOp op;
  const auto handle = c10::Dispatcher::singleton().findSchema({name, overload});
  if (!handle) return op;
  const run::OpInfo& info = info_of(*handle);
  const c10::FunctionSchema& schema = handle->schema();
  if (info.returns.size() != 1 || !info.returns[0].tensor || info.returns[0].list ||
      info.data_dependent || info.indexes || info.random || info.metadata_only ||
      info.moves_metadata)
    return op;
  for (size_t i = 0; i < info.args.size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    Parameter parameter;
    parameter.take = take_of(argument, info.args[i], numbers && i > 0);
    parameter.name = PyUnicode_InternFromString(argument.name().c_str());
    parameter.keyword_only = argument.kwarg_only();
    parameter.required = !argument.default_value();
    if (argument.default_value()) parameter.absent = *argument.default_value();
    op.parameters.push_back(std::move(parameter));
  }
  const auto positional = [](const Parameter& parameter) {
    return parameter.take != Take::nothing && !parameter.keyword_only;
  };
  if (std::count_if(op.parameters.begin(), op.parameters.end(), positional) == 2)
    op.parameters[1].rest = op.parameters[1].take == Take::integers;
  op.view = info.returns[0].may_alias;
  op.in_place = info.writes;
  op.info = &info;
  return op;
}

PyObject* record_directly(const DirectOp& op, PyObject* const* args, size_t count,
                          PyObject* names) {
  if (!op.info || op.info->outdated.load(std::memory_order_relaxed) || !ordinary_thread() ||
      (op.view && replays_views()))
    return nullptr;
  return directly([&]() -> PyObject* {
    Call call(*op.info);
    if (!Binder(op, call).bind(args, count, names)) return nullptr;
    at::Tensor result;
    if (!current_recorder()->record_direct(call, op.view, result)) return nullptr;
    if (op.in_place) {
      THPVariable_Unpack(args[0]).unsafeGetTensorImpl()->bump_version();
      return Py_NewRef(args[0]);
    }
    if (op.view) result = as_view_of(THPVariable_Unpack(args[0]), result);
    return python_object(std::move(result));
  });
}

PyObject* subscript_directly(PyObject* self, PyObject* key) {
  if (Py_TYPE(self) != python_class()) return nullptr;
  const at::Tensor& tensor = THPVariable_Unpack(self);
  const LazyImpl* lazy = lazy_impl(tensor);
  if (!lazy || lazy->resized_outside() || !ordinary_keys(*lazy) || !without_grad(tensor, true) ||
      !ordinary_thread() || replays_views() || run::tracing())
    return nullptr;
  return directly([&]() -> PyObject* {
    run::GeometryData look = lazy->value()->geometry().data();
    look.wrapped_number = false;
    if (!follow_subscript(look, key)) return nullptr;
    note_backward_of_lazy();
    find_forward_node();
    const at::Tensor view =
        make_lazy(make_ref<run::Value>(lazy->value()->var_ref(), run::intern(look)));
    if (has_new_autograd_node()) note_forward(stacks::capture(), at::Tensor());
    return python_object(as_view_of(tensor, view));
  });
}

PyObject* detach_directly(PyObject* self) {
  const at::Tensor& tensor = THPVariable_Unpack(self);
  LazyImpl* lazy = lazy_impl(tensor);
  if (!lazy || lazy->resized_outside() || !ordinary_thread() || !ordinary_keys(*lazy))
    return nullptr;
  return directly([&]() -> PyObject* {
    if (torch::autograd::impl::get_autograd_meta(tensor) && tensor._fw_grad(/*level=*/0).defined())
      return nullptr;
    find_forward_node();
    // What torch makes of it: a view without view metadata, that shares the version counter.
    const at::Tensor result = make_lazy(lazy->value());
    result.unsafeGetTensorImpl()->set_version_counter(lazy->version_counter());
    result.unsafeGetTensorImpl()->set_allow_tensor_metadata_change(false);
    return python_object(result);
  });
}

}  // namespace lazyeng::record
