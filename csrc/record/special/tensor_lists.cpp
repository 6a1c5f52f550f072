// csrc/record/special/tensor_lists.cpp: ops over lists of tensors (_foreach_add_, ...), recorded
// tensor by tensor.
//
// torch's kernel for the CPU is a loop that calls the op of one tensor for each of the list.
// Recorded whole it would wait for all of its tensors and join no group; as its parts, the step of
// an optimizer over many parameters is recorded by a few calls from Python and runs as groups. On
// other devices such an op is one kernel, and a chain of them one launch (fuse/chosen/lists.py): it
// is recorded whole.
//
// Where the loop does nothing but call the op that its name says, the calls are made here, past the
// dispatcher; else torch's loop makes them.
#include "csrc/record/special/tensor_lists.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>

#include "csrc/engine/reserve.h"
#include "csrc/record/lazy_tensor.h"
#include "csrc/record/library.h"
#include "csrc/record/methods/direct.h"
#include "csrc/record/node_builder.h"
#include "csrc/record/process/gate.h"
#include "csrc/record/recorder.h"
#include "csrc/record/thread_mode.h"
#include "csrc/run/python_ref.h"

namespace lazyeng::record {
namespace {

/// Ops whose loop is `self[i].op_(others[i]..., numbers...)`. (Not that of maximum and minimum,
/// which calls clamp_min and clamp_max, nor that of norm.)
constexpr auto kLoopsOfTheirName = std::to_array<std::string_view>(
    {"abs",   "acos", "add",   "addcdiv", "addcmul", "asin",       "atan",  "ceil",    "clamp_max",
     "copy_", "cos",  "cosh",  "div",     "erf",     "erfc",       "exp",   "expm1",   "clamp_min",
     "floor", "frac", "lerp",  "lgamma",  "log",     "log10",      "log1p", "log2",    "mul",
     "neg",   "pow",  "round", "rsqrt",   "sign",    "reciprocal", "sin",   "sigmoid", "sinh",
     "sqrt",  "sub",  "tan",   "tanh",    "trunc",   "zero_"});

constexpr auto kOverloads =
    std::to_array<const char*>({"", "Tensor", "Scalar", "Tensor_Tensor", "Tensor_Scalar"});

constexpr std::string_view kPrefix = "aten::_foreach_";

bool is_list(const c10::Argument& argument) {
  return argument.type()->kind() == c10::TypeKind::ListType;
}

/// An argument of the op over lists, and what the op of one tensor takes in its place.
bool fits(const c10::Argument& of_lists, const c10::Argument& of_one) {
  c10::TypePtr type = of_lists.type();
  if (is_list(of_lists)) type = type->castRaw<c10::ListType>()->getElementType();
  return *type == *of_one.type();
}

bool fits(const c10::FunctionSchema& lists, const c10::FunctionSchema& one) {
  if (one.arguments().size() < lists.arguments().size() || one.returns().size() != 1) return false;
  for (size_t i = 0; i < one.arguments().size(); ++i) {
    const c10::Argument& argument = one.arguments()[i];
    if (i < lists.arguments().size() ? !fits(lists.arguments()[i], argument)
                                     : !argument.default_value())
      return false;
  }
  return true;
}

/// The op that the loop calls for each tensor; null: it is not known, or made of others.
const run::OpInfo* op_of_one(const c10::FunctionSchema& lists) {
  const std::string name = lists.name().substr(kPrefix.size());
  const auto is_named = [&](std::string_view loop) {
    return name == loop || (name.size() == loop.size() + 1 && name.back() == '_' &&
                            name.compare(0, loop.size(), loop) == 0);
  };
  if (std::none_of(kLoopsOfTheirName.begin(), kLoopsOfTheirName.end(), is_named)) return nullptr;
  for (const char* overload : kOverloads) {
    const auto op = c10::Dispatcher::singleton().findSchema({"aten::" + name, overload});
    if (op && fits(lists, op->schema()) &&
        !op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd))
      return &info_of(*op);
  }
  return nullptr;
}

bool is_on_cpu(const at::Tensor& tensor) {
  const LazyImpl* const lazy = lazy_impl(tensor);
  return (lazy ? lazy->value()->geometry().device() : tensor.device()).is_cpu();
}

bool is_on_cpu(const c10::IValue& argument) {
  if (argument.isTensor()) return is_on_cpu(argument.toTensor());
  if (!argument.isTensorList()) return true;
  const c10::ArrayRef<c10::IValue> list = argument.toListRef();
  return std::all_of(list.begin(), list.end(),
                     [](const c10::IValue& element) { return is_on_cpu(element.toTensor()); });
}

/// Of which the argument gives each tensor its own.
c10::ArrayRef<c10::IValue> list_of(const c10::IValue& argument) {
  return argument.isList() ? argument.toListRef() : c10::ArrayRef<c10::IValue>();
}

/// What the loop asks before it calls: lists of one length, not empty, and of tensors that are no
/// list only numbers.
bool is_accepted_by_loop(c10::ArrayRef<c10::IValue> arguments) {
  size_t length = 0;
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensor() && argument.toTensor().dim() != 0) return false;
    if (!argument.isList()) continue;
    const size_t own = list_of(argument).size();
    if (own == 0 || (length != 0 && own != length)) return false;
    length = own;
  }
  return length != 0;
}

/// Autograd has done its part: it does not look at the calls that the loop makes.
bool is_below_autograd() {
  return c10::impl::tls_local_dispatch_key_set().excluded_.has_all(c10::autograd_dispatch_keyset);
}

/// What torch's ADInplaceOrView kernel does after an in-place op, if it would be called.
void bump_version(const at::Tensor& written) {
  constexpr c10::DispatchKey kBumps = c10::DispatchKey::ADInplaceOrView;
  c10::TensorImpl* const impl = written.unsafeGetTensorImpl();
  if (impl->key_set().has(kBumps) && !c10::impl::tls_is_dispatch_key_excluded(kBumps))
    impl->bump_version();
}

class ListKernel final : public c10::OperatorKernel {
 public:
  explicit ListKernel(const c10::OperatorHandle& op) : handle_(op) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/,
                  torch::jit::Stack* stack) {
    const size_t count = op.schema().arguments().size();
    const Gate::Inside inside;
    const c10::ArrayRef<c10::IValue> arguments = torch::jit::last(*stack, count);
    if (is_replaced(op) ||
        !std::all_of(arguments.begin(), arguments.end(),
                     [](const c10::IValue& argument) { return is_on_cpu(argument); }))
      return current_recorder()->record(info_of(op), stack);
    const run::OpInfo* const one = op_of_one();
    if (one && is_below_autograd() && nobody_watches_calls() && is_accepted_by_loop(arguments))
      record_each(*one, count, stack);
    else
      op.callBoxedForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd, *stack);
  }

 private:
  /// (Not at registration: its kernels may not be there yet.) Null too while the program has a
  /// kernel of its own for it, or if it had one when this was asked first.
  const run::OpInfo* op_of_one() {
    std::call_once(looked_, [&] { one_ = record::op_of_one(handle_.schema()); });
    const bool known = one_ && one_->aten && !one_->outdated.load(std::memory_order_relaxed);
    return known ? one_ : nullptr;
  }

  void record_each(const run::OpInfo& one, size_t count, torch::jit::Stack* stack) const;

  const c10::OperatorHandle handle_;
  std::once_flag looked_;
  const run::OpInfo* one_ = nullptr;
};

/// Calls of the op of one tensor, made of a call of the op over lists.
class Elements {
 public:
  Elements(const run::OpInfo& one, c10::ArrayRef<c10::IValue> arguments)
      : one_(one), schema_(one.handle.schema()), arguments_(arguments) {}

  /// The i-th call, if it needs nothing that the dispatcher's way would do: undefined `result` of
  /// an op that returns what it writes. GIL.
  bool record_directly(size_t i, at::Tensor& result) const {
    check_reserve();
    const engine::Owing owing;
    Call call(one_);
    for (size_t a = 0; a < one_.args.size(); ++a) {
      const c10::IValue& argument = argument_of(a, i);
      if (one_.args[a].kind == run::ArgKind::tensor)
        read_tensor(call, argument.toTensor(), one_.args[a]);
      else
        call.args.push_back(argument);
    }
    if (call.must_run || (call.writes_plain && !is_usual_write(call))) return false;
    if (!current_recorder()->record_direct(call, /*view=*/false, result)) return false;
    for (const at::Tensor& tensor : call.written) bump_version(tensor);
    return true;
  }

  /// The i-th call by the dispatcher, as the loop makes it. Without the GIL.
  at::Tensor record(size_t i) const {
    torch::jit::Stack stack;
    for (size_t a = 0; a < one_.args.size(); ++a) stack.push_back(argument_of(a, i));
    one_.handle.callBoxed(stack);
    return torch::jit::pop(stack).toTensor();
  }

 private:
  const c10::IValue& argument_of(size_t a, size_t i) const {
    if (a >= arguments_.size()) return *schema_.arguments()[a].default_value();
    const c10::IValue& argument = arguments_[a];
    return argument.isList() ? list_of(argument)[i] : argument;
  }

  /// Of plain tensors that are somebody's: they are complete at the end of the block.
  static bool is_usual_write(const Call& call) {
    return thread_mode().inside() &&
           std::all_of(call.written.begin(), call.written.end(), [](const at::Tensor& tensor) {
             return tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj() != nullptr;
           });
  }

  const run::OpInfo& one_;
  const c10::FunctionSchema& schema_;
  const c10::ArrayRef<c10::IValue> arguments_;
};

void ListKernel::record_each(const run::OpInfo& one, size_t count, torch::jit::Stack* stack) const {
  const torch::jit::Stack arguments = torch::jit::pop(*stack, count);
  const Elements elements(one, arguments);
  const auto first_list =
      std::find_if(arguments.begin(), arguments.end(),
                   [](const c10::IValue& argument) { return argument.isList(); });
  const size_t length = list_of(*first_list).size();
  c10::List<at::Tensor> results;
  const auto add = [&](at::Tensor result) {
    if (!one.writes) results.push_back(std::move(result));
  };
  for (size_t i = 0; i < length; ++i) {
    {
      const run::Gil gil;
      at::Tensor result;
      for (; i < length && elements.record_directly(i, result); ++i) {
        if (result.defined()) make_python_object(result);
        add(std::move(result));
      }
    }
    if (i < length) add(elements.record(i));
  }
  if (!one.writes) stack->emplace_back(std::move(results));
}

/// The loop reads numbers from the memory of such an argument (_foreach_addcdiv_.Tensor).
bool is_tensor_of_numbers(const c10::Argument& argument) {
  return argument.name() == "scalars" && argument.type()->kind() == c10::TypeKind::TensorType;
}

}  // namespace

std::optional<torch::CppFunction> tensor_list_kernel(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  const auto unfit = [](const c10::Argument& argument) {
    return argument.is_out() || is_tensor_of_numbers(argument);
  };
  if (schema.name().rfind(kPrefix, 0) != 0 ||
      !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
      op.hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
      std::any_of(schema.arguments().begin(), schema.arguments().end(), unfit))
    return std::nullopt;
  return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<ListKernel>(op));
}

}  // namespace lazyeng::record
