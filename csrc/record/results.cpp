// csrc/record/results.cpp: from values and real tensors to what the caller of an op gets back.
#include "csrc/record/results.h"

#include <ATen/EmptyTensor.h>

#include <algorithm>

#include "csrc/record/lazy_tensor.h"
#include "csrc/record/recorder.h"
#include "csrc/record/special/components.h"
#include "csrc/run/device/launch_order.h"
#include "csrc/run/plain/plain_storage.h"
#include "csrc/run/plain/unseen_writers.h"

namespace lazyeng::record {
namespace {

at::Tensor lazy_for(run::ValueRef value, Made& made) {
  if (!value) return at::Tensor();
  at::Tensor tensor = make_lazy(std::move(value));
  made.push_back(tensor);
  return tensor;
}

/// The var of the argument that has the storage of a real tensor, or null.
run::StorageVarRef var_of_argument(const run::Node& node, const at::Tensor& real) {
  for (const run::TensorArg& arg : node.tensors) {
    if (!arg.value) continue;
    if (has_storage(real, arg.value->var().engine_face())) return arg.value->var_ref();
    if (arg.raw.defined() && has_storage(real, arg.raw.storage())) return arg.value->var_ref();
  }
  return nullptr;
}

run::ValueRef value_of(const run::Node& node, const at::Tensor& real) {
  run::StorageVarRef var = var_of_argument(node, real);
  if (!var) var = var_of_component(node, real);
  if (!var) {
    var = make_ref<run::StorageVar>(real.storage(), real.storage().nbytes());
    run::note_found(node, *var);
  }
  return make_ref<run::Value>(std::move(var), run::geometry_of(real));
}

/// A plain tensor that took the storage of another argument (set_, sparse_coo_tensor) holds its
/// user face, as all plain tensors do: the op saw the engine's, under which nobody would find the
/// var. Whether it has.
bool hold_user_face(const at::Tensor& plain, const run::Node& node) {
  if (!plain.has_storage()) return false;
  for (const run::TensorArg& arg : node.tensors) {
    if (!arg.value || !has_storage(plain, arg.value->var().engine_face())) continue;
    run::StorageVar& var = arg.value->var();
    plain.unsafeGetTensorImpl()->set_storage_keep_dtype(run::plain_storages().user_face(var));
    current_recorder()->note_handed_out(var);
    return true;
  }
  return false;
}

/// What is no lazy tensor.
void hold_user_faces(const at::Tensor& real, const run::Node& node) {
  if (recordable(real)) {
    hold_user_face(real, node);
    return;
  }
  for (const at::Tensor& component : components_of(real))
    if (hold_user_face(component, node)) run::lendings().lend(component.storage(), component);
}

at::Tensor found_tensor(const run::Node& node, const at::Tensor& real, Made& made) {
  if (!real.defined()) return real;
  if (recordable(real)) return lazy_for(value_of(node, real), made);
  hold_user_faces(real, node);
  return real;
}

void push_found_value(const run::Node& node, const c10::IValue& result, Made& made,
                      torch::jit::Stack* results) {
  if (result.isTensor()) {
    results->emplace_back(found_tensor(node, result.toTensor(), made));
  } else if (result.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : result.toTensorVector())
      list.push_back(found_tensor(node, tensor, made));
    results->emplace_back(std::move(list));
  } else {
    results->push_back(result);
  }
}

/// The storage that set_ gave a lazy tensor may be one of plain tensors, which no argument stood
/// for.
run::ValueRef value_after_set(const run::Node& node, const at::Tensor& real) {
  run::StorageVarRef var = var_of_argument(node, real);
  if (!var) var = run::plain_storages().var_of(real);
  return make_ref<run::Value>(std::move(var), run::geometry_of(real));
}

/// What a resize_ that was refused leaves: sizes which would be read from beyond the storage.
/// (Sparse and other tensors without strides do not get here.)
bool is_beyond_its_storage(const at::Tensor& real) {
  const size_t needed = at::detail::computeStorageNbytes(real.sizes(), real.strides(),
                                                         real.itemsize(), real.storage_offset());
  return needed > real.storage().nbytes();
}

}  // namespace

void update_written(const Call& call, const run::Node& node) {
  size_t next = 0;
  for (const at::Tensor& tensor : call.written) {
    if (!tensor.defined()) continue;
    if (next == node.discovery->written.size()) return;  // it failed before it had its arguments
    const at::Tensor& real = node.discovery->written[next++].second;
    LazyImpl* lazy = lazy_impl(tensor);
    if (!lazy) {  // a plain tensor was passed itself
      hold_user_faces(tensor, node);
      continue;
    }
    if (is_beyond_its_storage(real)) continue;
    const c10::Storage& before = lazy->value()->var().engine_face();  // (none: it failed)
    const bool same_storage = before && has_storage(real, before);
    if (same_storage) lazy->value()->var().set_nbytes(real.storage().nbytes());
    if (!same_storage)
      lazy->set_value(value_after_set(node, real));
    else if (!run::matches(lazy->value()->geometry(), real))
      lazy->set_value(value_of(node, real));
  }
}

namespace {

/// Whether views are inference tensors depends on what they are views of, not on the mode.
void follow_viewed(const Call& call, const Made& made) {
  const bool counted = call.info.name == "aten::detach";  // (torch's own lets it be written)
  for (const at::Tensor& tensor : made)
    lazy_impl(tensor)->set_inference(call.of_inference, counted);
}

}  // namespace

void push_recorded(const Call& call, const CallPlan& plan,
                   c10::SmallVectorImpl<run::ValueRef>& values, Made& made,
                   torch::jit::Stack* results) {
  size_t next = 0, next_list = 0, next_number = 0;
  for (const run::ReturnInfo& info : call.info.returns) {
    if (info.written_arg >= 0) {
      results->push_back(call.inputs[info.written_arg]);
    } else if (info.number) {
      results->emplace_back(plan.numbers[next_number++]);
    } else if (!info.list) {
      results->emplace_back(lazy_for(std::move(values[next++]), made));
    } else {
      c10::List<at::Tensor> list;
      for (int64_t i = 0; i < plan.list_lengths[next_list]; ++i)
        list.push_back(lazy_for(std::move(values[next++]), made));
      ++next_list;
      results->emplace_back(std::move(list));
    }
  }
  if (plan.only_metadata) follow_viewed(call, made);
}

void push_found(const Call& call, run::Node& node, Made& made, torch::jit::Stack* results) {
  update_written(call, node);
  for (size_t r = 0; r < call.info.returns.size(); ++r) {
    const int written = call.info.returns[r].written_arg;
    if (written >= 0)
      results->push_back(call.inputs[written]);
    else
      push_found_value(node, node.discovery->results[r], made, results);
  }
  const bool views = std::any_of(call.info.returns.begin(), call.info.returns.end(),
                                 [](const run::ReturnInfo& info) { return info.may_alias; });
  if (views) follow_viewed(call, made);
}

void apply_rewrites(const Call& call, c10::ArrayRef<run::TensorArg> tensors, const CallPlan& plan,
                    c10::ArrayRef<run::ValueRef> after) {
  if (plan.rewrites.empty()) return;
  size_t next_written = 0;
  for (uint32_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].written) continue;
    const at::Tensor& tensor = call.written[next_written++];
    for (size_t r = 0; r < plan.rewrites.size(); ++r)
      if (plan.rewrites[r].tensor == i) lazy_impl(tensor)->set_value(after[r]);
  }
}

void make_python_objects(const Made& made) {
  for (const at::Tensor& tensor : made) make_python_object(tensor);
}

at::Tensor first_result(const Made& made, const Call& call) {
  if (!made.empty()) return made[0];
  return call.written.empty() ? at::Tensor() : call.written[0];
}

}  // namespace lazyeng::record
