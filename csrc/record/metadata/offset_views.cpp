// csrc/record/metadata/offset_views.cpp: what at::select and at::slice do with sizes, strides and
// offset.
#include "csrc/record/metadata/offset_views.h"

#include <c10/util/safe_numerics.h>

#include <algorithm>
#include <optional>

#include "csrc/record/forward_stacks.h"
#include "csrc/record/lazy_tensor.h"
#include "csrc/record/special/factories.h"
#include "csrc/record/thread_mode.h"
#include "csrc/run/plain/plain_values.h"
#include "csrc/run/python_ref.h"
#include "csrc/run/traces/trace.h"

namespace lazyeng::record {
bool select(run::GeometryData& look, size_t dim, int64_t index) {
  const int64_t size = look.sizes[dim];
  if (index < -size || index >= size) return false;
  if (index < 0) index += size;
  look.offset += index * look.strides[dim];
  look.sizes.erase(look.sizes.begin() + dim);
  look.strides.erase(look.strides.begin() + dim);
  return true;
}

bool slice(run::GeometryData& look, size_t dim, int64_t start, int64_t end, int64_t step) {
  int64_t stride = 0;
  if (step <= 0 || c10::mul_overflows(look.strides[dim], step, &stride)) return false;
  const int64_t size = look.sizes[dim];
  const auto place = [size](int64_t number) {
    return std::clamp<int64_t>(number < 0 ? number + size : number, 0, size);
  };
  start = place(start);
  const int64_t length = std::max<int64_t>(place(end) - start, 0);
  int64_t rounded_up = 0;  // (in torch, too, and there it may overflow)
  if (c10::add_overflows(length, step - 1, &rounded_up)) return false;
  look.offset += start * look.strides[dim];
  look.sizes[dim] = rounded_up / step;
  look.strides[dim] = stride;
  return true;
}

void unsqueeze(run::GeometryData& look, size_t dim) {
  const int64_t stride = dim == look.sizes.size() ? 1 : look.sizes[dim] * look.strides[dim];
  look.sizes.insert(look.sizes.begin() + dim, 1);
  look.strides.insert(look.strides.begin() + dim, stride);
}

namespace {

/// None if it is out of range, which the op says in its own words.
std::optional<size_t> dim_of(const c10::IValue& dim, const run::GeometryData& look) {
  const int64_t rank = static_cast<int64_t>(look.sizes.size());
  if (!dim.isInt() || dim.toInt() < -rank || dim.toInt() >= rank) return std::nullopt;
  return static_cast<size_t>(dim.toInt() < 0 ? dim.toInt() + rank : dim.toInt());
}

/// select.int(Tensor self, int dim, SymInt index)
bool selected(const c10::IValue* args, run::GeometryData& look) {
  const std::optional<size_t> dim = dim_of(args[1], look);
  return dim && args[2].isInt() && select(look, *dim, args[2].toInt());
}

/// slice.Tensor(Tensor self, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1)
bool sliced(const c10::IValue* args, run::GeometryData& look) {
  const std::optional<size_t> dim = dim_of(args[1], look);
  if (!dim) return false;
  const auto number = [](const c10::IValue& arg, int64_t absent) -> std::optional<int64_t> {
    if (arg.isNone()) return absent;
    return arg.isInt() ? std::optional(arg.toInt()) : std::nullopt;
  };
  const std::optional<int64_t> start = number(args[2], 0), end = number(args[3], look.sizes[*dim]),
                               step = number(args[4], 1);
  return start && end && step && slice(look, *dim, *start, *end, *step);
}

/// Null: what it shows is no such view, or torch refuses it.
run::GeometryRef look_of_view(run::OffsetView kind, const run::Geometry& viewed,
                              const c10::IValue* args) {
  run::GeometryData look = viewed.data();
  look.wrapped_number = false;
  const bool known = kind == run::OffsetView::select ? selected(args, look) : sliced(args, look);
  return known ? run::intern(look) : nullptr;
}

/// Null: a tensor that is recorded in another way, or not at all.
run::ValueRef value_of(const at::Tensor& tensor) {
  if (LazyImpl* lazy = lazy_impl(tensor)) return lazy->resized_outside() ? nullptr : lazy->value();
  if (!thread_mode().inside() || !recordable(tensor) ||
      tensor.unsafeGetTensorImpl()->is_wrapped_number())
    return nullptr;
  return run::plain_values().value_of(tensor, /*viewed=*/true);
}

}  // namespace

bool record_offset_view(const run::OpInfo& info, torch::jit::Stack& stack) {
  if (info.offset_view == run::OffsetView::none || thread_mode().mode == Mode::sync ||
      run::tracing())
    return false;
  const size_t count = info.args.size();
  const c10::IValue* const args = stack.data() + (stack.size() - count);
  const run::ValueRef viewed = value_of(args[0].toTensor());
  if (!viewed) return false;
  run::GeometryRef look = look_of_view(info.offset_view, viewed->geometry(), args);
  if (!look) return false;
  note_backward_of_lazy();
  at::Tensor view = make_lazy(make_ref<run::Value>(viewed->var_ref(), std::move(look)));
  lazy_impl(view)->set_inference(args[0].toTensor().is_inference(), /*counted=*/false);
  torch::jit::drop(stack, count);
  stack.emplace_back(view);
  run::Gil gil;
  make_python_object(view);
  if (has_new_autograd_node()) note_forward(stacks::capture(), view);
  return true;
}

CallPlanRef plan_of_offset_view(const Call& call) {
  const run::OffsetView kind = call.info.offset_view;
  if (kind == run::OffsetView::none || !call.tensors[0].value || !call.looks[0]) return nullptr;
  run::GeometryRef look = look_of_view(kind, *call.looks[0], call.args.data());
  if (!look) return nullptr;
  auto plan = make_ref<CallPlan>();
  plan->only_metadata = true;
  plan->outputs.push_back({OutputPlan::Kind::view, 0, std::move(look), call.looks[0]->offset()});
  return plan;
}

}  // namespace lazyeng::record
