// csrc/record/special/kernels_with_autograd.cpp: their arguments, and calling them.
#include "csrc/record/special/kernels_with_autograd.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "csrc/record/lazy_tensor.h"
#include "csrc/record/plain_views.h"
#include "csrc/record/recorder.h"
#include "csrc/record/thread_mode.h"
#include "csrc/run/python_ref.h"

namespace lazyeng::record {
namespace {

bool wants_grad(const at::Tensor& tensor) { return tensor.defined() && tensor.requires_grad(); }

bool wants_grad(const c10::IValue& argument) {
  if (argument.isTensor()) return wants_grad(argument.toTensor());
  if (argument.isTensorList())
    return std::ranges::any_of(argument.toTensorVector(),
                               [](const at::Tensor& tensor) { return wants_grad(tensor); });
  return argument.isOptionalTensorList() &&
         std::ranges::any_of(
             argument.toOptionalTensorVector(),
             [](const std::optional<at::Tensor>& tensor) { return tensor && wants_grad(*tensor); });
}

bool some_want_grad(const torch::jit::Stack& stack, size_t count) {
  return c10::GradMode::is_enabled() &&
         std::any_of(stack.end() - static_cast<ptrdiff_t>(count), stack.end(),
                     [](const c10::IValue& argument) { return wants_grad(argument); });
}

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() && argument.alias_info()->isWrite();
}

/// The arguments of a call with plain views in place of lazy tensors.
class PlainArguments {
 public:
  PlainArguments(const c10::FunctionSchema& schema, torch::jit::Stack& stack) {
    const std::vector<c10::Argument>& arguments = schema.arguments();
    for (size_t i = 0; i < arguments.size(); ++i)
      exchange(torch::jit::peek(stack, i, arguments.size()), is_written(arguments[i]));
  }

  /// For the backends' kernels, of a call on them from here.
  c10::DispatchKeySet keys() const {
    const auto local = c10::impl::tls_local_dispatch_key_set();
    return (((keys_ | local.included_) - local.excluded_) & c10::after_ADInplaceOrView_keyset)
        .remove(c10::DispatchKey::BackendSelect);
  }

  /// What the call was given is returned as it was given, but for another shape that it has now.
  void restore(torch::jit::Stack& results) const {
    for (const auto& [view, lazy] : views_) follow_shape(view, lazy);
    for (c10::IValue& result : results) {
      if (!result.isTensor() || !result.toTensor().defined()) continue;
      for (const auto& [view, lazy] : views_)
        if (result.toTensor().is_same(view)) {
          result = lazy;
          break;
        }
    }
  }

 private:
  static void follow_shape(const at::Tensor& view, const at::Tensor& lazy) {
    const run::ValueRef value = lazy_impl(lazy)->value();
    if (!run::matches(value->geometry(), view))
      lazy_impl(lazy)->set_value(make_ref<run::Value>(value->var_ref(), run::geometry_of(view)));
  }

  void exchange(c10::IValue& argument, bool written) {
    if (argument.isTensor() && argument.toTensor().defined()) {
      argument = exchanged(argument.toTensor(), written);
    } else if (argument.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : argument.toTensorVector())
        list.push_back(exchanged(tensor, written));
      argument = std::move(list);
    } else if (argument.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : argument.toOptionalTensorVector())
        list.push_back(tensor && tensor->defined() ? std::optional(exchanged(*tensor, written))
                                                   : tensor);
      argument = std::move(list);
    }
  }

  at::Tensor exchanged(const at::Tensor& tensor, bool written) {
    const at::Tensor plain = view_of(tensor, written);
    keys_ = keys_ | plain.key_set();
    return plain;
  }

  /// Packed weights are an object of C++ in the storage that their kernel has made.
  static at::Tensor packed_or(const at::Tensor& plain, const at::Tensor& lazy) {
    return plain.scalar_type() == c10::kByte ? lazy_impl(lazy)->value()->real() : plain;
  }

  at::Tensor view_of(const at::Tensor& tensor, bool written) {
    for (const auto& [view, lazy] : views_)
      if (lazy.is_same(tensor)) return view;
    wait_for_plain(tensor);
    if (!lazy_impl(tensor)) return tensor;
    const at::Tensor plain = plain_of(tensor);  // waits, and raises its error
    if (!written && !tensor.requires_grad()) return packed_or(plain, tensor);
    const run::Gil gil;
    return views_.emplace_back(plain_view(tensor), tensor).first;
  }

  std::vector<std::pair<at::Tensor, at::Tensor>> views_;
  c10::DispatchKeySet keys_;
};

}  // namespace

// (Below autograd's kernels its keys are excluded.)
bool autograd_looks_inside(const run::OpInfo& info, const torch::jit::Stack& stack) {
  return !info.aten && info.collective == run::Collectivity::none &&
         !c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutogradOther) &&
         some_want_grad(stack, info.args.size());
}

void run_with_autograd(const run::OpInfo& info, torch::jit::Stack* stack) {
  const PlainArguments plain(info.handle.schema(), *stack);
  {
    const OutsideBlock outside;
    info.handle.redispatchBoxed(plain.keys(), stack);
  }
  plain.restore(*stack);
}

void decompose_with_autograd(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                             torch::jit::Stack* stack) {
  if (!some_want_grad(*stack, op.schema().arguments().size()))
    return op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
  const PlainArguments plain(op.schema(), *stack);
  {
    const OutsideBlock outside;
    op.callBoxed(*stack);
  }
  plain.restore(*stack);
}

}  // namespace lazyeng::record
