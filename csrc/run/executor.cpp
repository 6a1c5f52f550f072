// csrc/run/executor.cpp: running one aten op on real tensors, and checking what it returned.
#include "csrc/run/executor.h"

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>

#include "csrc/run/arguments.h"
#include "csrc/run/cores/openmp_team.h"
#include "csrc/run/failures/kernel_warnings.h"
#include "csrc/run/memory/cpu_allocator.h"

namespace lazyeng::run {
namespace {

c10::impl::LocalDispatchKeySet below_autograd(c10::impl::LocalDispatchKeySet keys) {
  // (remove() of a backend's key leaves the backend bit.)
  keys.included_ = keys.included_.remove(c10::DispatchKey::PrivateUse1)
                       .remove_backend(c10::BackendComponent::PrivateUse1Bit);
  keys.excluded_ = keys.excluded_ | c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                   c10::autocast_dispatch_keyset;
  return keys;
}

thread_local int real_dispatch_depth = 0;

/// The real tensors of a node's tensor arguments, one after another.
class RealTensors {
 public:
  explicit RealTensors(Node& node) : node_(node) {}

  at::Tensor next() {
    const uint32_t index = index_++;
    TensorArg& arg = node_.tensors[index];
    if (node_.discovery && arg.written) return observed(index, arg);
    if (arg.raw.defined()) return arg.raw;
    if (!arg.value) return at::Tensor();
    if (node_.discovery && is_written_as_plain(*arg.value)) return arg.value->plain();
    for (const Node::Rewrite& rewrite : node_.rewrites)
      if (rewrite.tensor == index) return rewritten(rewrite, arg);
    if (arg.another_object) return arg.value->fresh_real();
    return needs_own_object(*arg.value) ? own_object(*arg.value) : arg.value->real();
  }

 private:
  /// An op that changes the tensor object itself (resize_) gets an object that nobody shares.
  at::Tensor rewritten(const Node::Rewrite& rewrite, TensorArg& arg) {
    at::Tensor fresh = arg.value->fresh_real();
    rewrite.after->set_real(fresh);
    return fresh;
  }

  /// What the op may do to the metadata of a written argument is looked at afterwards. A plain
  /// tensor is passed itself: the op may resize the storage that its user holds.
  at::Tensor observed(uint32_t index, TensorArg& arg) {
    at::Tensor tensor = arg.raw.defined() ? arg.raw
                        : arg.value       ? own_object(*arg.value)
                                          : at::Tensor();
    if (tensor.defined()) node_.discovery->written.emplace_back(index, tensor);
    return tensor;
  }

  /// Through a plain tensor over the same memory, which is passed itself (record/node_builder.cpp).
  bool is_written_as_plain(const Value& value) const {
    return std::any_of(node_.tensors.begin(), node_.tensors.end(), [&](const TensorArg& arg) {
      return arg.written && arg.raw.defined() && arg.value && &arg.value->var() == &value.var();
    });
  }

  /// What it writes; and what its result may keep (a sparse tensor its values), to which the user
  /// face is given then (record/results.cpp).
  bool needs_own_object(const Value& value) const {
    return node_.discovery && (!node_.info.returns_plain || is_written_too(value));
  }

  bool is_written_too(const Value& value) const {
    return std::any_of(node_.tensors.begin(), node_.tensors.end(), [&](const TensorArg& arg) {
      return arg.written && arg.value.get() == &value;
    });
  }

  /// What was one object in the call is one here: `cat([x, y], out=x)` resizes x before it looks
  /// whether its inputs overlap.
  at::Tensor own_object(Value& value) {
    for (const auto& [passed, tensor] : objects_)
      if (passed == &value) return tensor;
    return objects_.emplace_back(&value, value.fresh_real()).second;
  }

  Node& node_;
  uint32_t index_ = 0;
  c10::SmallVector<std::pair<const Value*, at::Tensor>, 2> objects_;
};

at::Tensor (*plain_of_lazy)(const at::Tensor&) = nullptr;  // set at import

bool is_lazy(const at::Tensor& tensor) {
  return tensor.defined() && tensor.key_set().has(c10::DispatchKey::PrivateUse1);
}

bool aliases_an_input(c10::ArrayRef<TensorArg> inputs, const at::Tensor& tensor) {
  for (const TensorArg& arg : inputs)
    if (arg.value && arg.value->var().engine_face().is_alias_of(tensor.storage())) return true;
  return false;
}

/// A copy of `tensor` that looks as recorded.
at::Tensor with_layout(const Geometry& g, const at::Tensor& tensor) {
  at::Tensor copy = tensor_over(new_storage(g.extent_bytes(), g.device()), g);
  copy.copy_(tensor);
  return copy;
}

/// A tensor of a class of its own (a kernel in Python may return one) has no memory to share.
void check_has_memory(const OpInfo& op, const at::Tensor& tensor) {
  if (!tensor.defined() ||
      (tensor.has_storage() && !tensor.key_set().has(c10::DispatchKey::Python)))
    return;
  op.distrust_plans = true;
  TORCH_CHECK_TYPE(false, "[", op.name, "] returned a tensor subclass, recorded as ",
                   "an ordinary tensor (the next call will be right)");
}

void check_is_as_recorded(const OpInfo& op, const Geometry& g, const at::Tensor& tensor) {
  if (tensor.defined() && tensor.sizes() == g.sizes() && tensor.scalar_type() == g.dtype()) return;
  op.distrust_plans = true;
  TORCH_CHECK(false, "[", op.name, "] returned ",
              tensor.defined() ? describe(*geometry_of(tensor)) : "nothing", ", recorded as ",
              describe(g), " (a wrong meta function; the next call will be right)");
}

void install(const Ran& ran, Value& value, const at::Tensor& result) {
  check_has_memory(ran.op, result);
  const Geometry& g = value.geometry();
  at::Tensor tensor = result;
  if (!same_layout(g, tensor)) {
    check_is_as_recorded(ran.op, g, tensor);
    if (ran.kind) doubt_layouts(ran.kind);
    tensor = with_layout(g, tensor);
  } else if (aliases_an_input(ran.inputs, tensor)) {
    tensor = with_layout(g, tensor);
  }
  value.var().set_nbytes(tensor.storage().nbytes());
  value.var().set_engine_face(tensor.storage());
  value.set_real(tensor);
}

}  // namespace

void set_plain_of(at::Tensor (*plain_of)(const at::Tensor&)) { plain_of_lazy = plain_of; }

void to_plain_results(torch::jit::Stack& stack) {
  for (c10::IValue& result : stack) {
    if (result.isTensor() && is_lazy(result.toTensor())) {
      result = plain_of_lazy(result.toTensor());
    } else if (result.isTensorList()) {
      c10::List<at::Tensor> list = result.toTensorList();
      for (size_t i = 0; i < list.size(); ++i)
        if (const at::Tensor tensor = list.get(i); is_lazy(tensor))
          list.set(i, plain_of_lazy(tensor));
    }
  }
}

torch::jit::Stack real_arguments(Node& node) {
  RealTensors tensors(node);
  return arguments_with(node.info, node.args, [&] { return tensors.next(); });
}

/// What an op returns that is new.
bool is_made(const ReturnInfo& info) { return info.tensor && info.written_arg < 0; }

/// How long lists are only the meta function, or the fake kernel, has said.
void check_count(const OpInfo& op, size_t recorded, const torch::jit::Stack& results) {
  size_t count = 0;
  for (size_t r = 0; r < op.returns.size(); ++r)
    if (is_made(op.returns[r])) count += op.returns[r].list ? results[r].toListRef().size() : 1;
  if (count == recorded) return;
  op.distrust_plans = true;
  TORCH_CHECK(false, "[", op.name, "] returned ", count, " tensors, recorded as ", recorded,
              " (a wrong meta function; the next call will be right)");
}

/// Of torch's own ops some compute a gradient that nobody has asked for.
void check_is_undefined(const OpInfo& op, const c10::IValue& result) {
  if (op.aten || !result.isTensor() || !result.toTensor().defined()) return;
  op.distrust_plans = true;
  TORCH_CHECK(false, "[", op.name, "] returned ", describe(*geometry_of(result.toTensor())),
              ", recorded as nothing (a wrong meta function; the next call will be right)");
}

void install_results(const Ran& ran, c10::ArrayRef<ValueRef> outputs,
                     const torch::jit::Stack& results) {
  check_count(ran.op, outputs.size(), results);
  size_t next = 0;
  const auto install_next = [&](const c10::IValue& result) {
    const ValueRef& value = outputs[next++];
    value ? install(ran, *value, result.toTensor()) : check_is_undefined(ran.op, result);
  };
  for (size_t r = 0; r < ran.op.returns.size(); ++r) {
    const ReturnInfo& info = ran.op.returns[r];
    if (!is_made(info)) continue;
    if (info.list)
      std::ranges::for_each(results[r].toListRef(), install_next);
    else
      install_next(results[r]);
  }
}

void install_results(Node& node, const torch::jit::Stack& results) {
  install_results({node.info, node.kind, node.tensors}, node.outputs, results);
  for (const Node::Rewrite& rewrite : node.rewrites) {
    at::Tensor tensor = rewrite.after->real();
    TORCH_CHECK(same_layout(rewrite.after->geometry(), tensor), "[", node.info.name, "] left ",
                describe(*geometry_of(tensor)), ", recorded as ",
                describe(rewrite.after->geometry()));
    rewrite.after->var().set_nbytes(tensor.storage().nbytes());
  }
}

bool RealDispatch::active() { return real_dispatch_depth != 0; }

RealDispatch::RealDispatch() : before_(c10::impl::tls_local_dispatch_key_set()) {
  ++real_dispatch_depth;
  c10::impl::_force_tls_local_dispatch_key_set(below_autograd(before_));
}

RealDispatch::~RealDispatch() {
  --real_dispatch_depth;
  c10::impl::_force_tls_local_dispatch_key_set(before_);
}

void init_engine_thread() {
  end_team_with_this_thread();
  allocate_from_pool(true);
  c10::WarningUtils::set_warning_handler(&kernel_warning_handler());
  c10::impl::_force_tls_local_dispatch_key_set(
      below_autograd(c10::impl::tls_local_dispatch_key_set()));
}

}  // namespace lazyeng::run
