// csrc/record/plain_views.cpp: plain tensors that autograd takes for views of a lazy one.
#include "csrc/record/plain_views.h"

#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <memory>
#include <optional>
#include <type_traits>

#include "csrc/record/call.h"
#include "csrc/record/lazy_tensor.h"
#include "csrc/record/recorder.h"
#include "csrc/run/executor.h"
#include "csrc/run/plain/plain_values.h"
#include "csrc/run/python_ref.h"

namespace lazyeng::record {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

at::Tensor without_history(const at::Tensor& plain) {
  const run::RealDispatch below;  // (in a block detach() is recorded)
  return plain.detach();
}

/// The gradient of a plain view, as the lazy tensor's history wants it.
struct PlainViewBackward final : Node {
  std::string name() const override { return "PlainViewBackward"; }

  variable_list apply(variable_list&& grads) override {
    const at::Tensor& grad = grads[0];
    if (!grad.defined() || lazy_impl(grad) || !recordable(grad)) return {grad};
    const at::Tensor lazy = make_lazy(run::new_value_of(without_history(grad)));
    const run::Gil gil;
    make_python_object(lazy);
    return {lazy};
  }
};

/// (torch 2.13 counts references in the node itself.)
template <class T>
auto make_node() {
  if constexpr (std::is_base_of_v<c10::intrusive_ptr_target, T>)
    return c10::make_intrusive<T>();
  else
    return std::make_shared<T>();
}

torch::autograd::CreationMeta creation_meta() {
  using torch::autograd::CreationMeta;
  if (c10::InferenceMode::is_enabled()) return CreationMeta::INFERENCE_MODE;
  return c10::GradMode::is_enabled() ? CreationMeta::DEFAULT : CreationMeta::NO_GRAD_MODE;
}

/// Normal of a normal tensor also in inference mode, as any view of it.
at::Tensor hand_out(const run::Value& value, const at::Tensor& lazy) {
  std::optional<c10::InferenceMode> normal;
  if (c10::InferenceMode::is_enabled() && !lazy.is_inference()) normal.emplace(false);
  return current_recorder()->hand_out(value);
}

}  // namespace

at::Tensor plain_view(const at::Tensor& lazy) {
  const run::ValueRef value = lazy_impl(lazy)->value();
  const at::Tensor view =
      torch::autograd::as_view(lazy, hand_out(*value, lazy), /*is_bw_differentiable=*/true,
                               /*is_fw_differentiable=*/true, nullptr, nullptr, creation_meta());
  value->var().note_plain_tensor(view);  // (whose version counter is now that of the lazy tensor)
  if (c10::GradMode::is_enabled() && lazy.requires_grad()) {
    const auto node = make_node<PlainViewBackward>();
    node->set_next_edges(torch::autograd::collect_next_edges(lazy));
    torch::autograd::set_history(view, node);
  }
  return view;
}

}  // namespace lazyeng::record
