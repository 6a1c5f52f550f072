// csrc/record/offset_views.cpp: what at::select and at::slice do with sizes, strides and offset.
#include "csrc/record/offset_views.h"

#include <c10/util/safe_numerics.h>

#include <algorithm>
#include <optional>

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
bool selected(const Call& call, run::GeometryData& look) {
  const std::optional<size_t> dim = dim_of(call.args[1], look);
  return dim && call.args[2].isInt() && select(look, *dim, call.args[2].toInt());
}

/// slice.Tensor(Tensor self, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1)
bool sliced(const Call& call, run::GeometryData& look) {
  const std::optional<size_t> dim = dim_of(call.args[1], look);
  if (!dim) return false;
  const auto number = [](const c10::IValue& arg, int64_t absent) -> std::optional<int64_t> {
    if (arg.isNone()) return absent;
    return arg.isInt() ? std::optional(arg.toInt()) : std::nullopt;
  };
  const std::optional<int64_t> start = number(call.args[2], 0),
                               end = number(call.args[3], look.sizes[*dim]),
                               step = number(call.args[4], 1);
  return start && end && step && slice(look, *dim, *start, *end, *step);
}

}  // namespace

PlanRef plan_of_offset_view(const Call& call) {
  using run::OffsetView;
  const OffsetView kind = call.info.offset_view;
  if (kind == OffsetView::none || !call.tensors[0].value || !call.looks[0]) return nullptr;
  run::GeometryData look = call.looks[0]->data();
  look.wrapped_number = false;
  if (!(kind == OffsetView::select ? selected(call, look) : sliced(call, look))) return nullptr;
  auto plan = make_ref<Plan>();
  plan->only_metadata = true;
  plan->outputs.push_back(
      {OutputPlan::Kind::view, 0, run::intern(std::move(look)), call.looks[0]->offset()});
  return plan;
}

}  // namespace lazyeng::record
