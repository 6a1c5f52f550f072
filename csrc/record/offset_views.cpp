// csrc/record/offset_views.cpp: what at::select and at::slice do with sizes, strides and offset.
#include "csrc/record/offset_views.h"

#include <c10/util/safe_numerics.h>

#include <algorithm>
#include <optional>

namespace lazyeng::record {
namespace {

/// None if it is out of range, which the op says in its own words.
std::optional<size_t> dim_of(const c10::IValue& dim, const run::GeometryData& look) {
  const int64_t rank = static_cast<int64_t>(look.sizes.size());
  if (!dim.isInt() || dim.toInt() < -rank || dim.toInt() >= rank) return std::nullopt;
  return static_cast<size_t>(dim.toInt() < 0 ? dim.toInt() + rank : dim.toInt());
}

/// select.int(Tensor self, int dim, SymInt index)
bool select(const Call& call, run::GeometryData& look) {
  const std::optional<size_t> dim = dim_of(call.args[1], look);
  if (!dim || !call.args[2].isInt()) return false;
  const int64_t size = look.sizes[*dim];
  int64_t index = call.args[2].toInt();
  if (index < -size || index >= size) return false;
  if (index < 0) index += size;
  look.offset += index * look.strides[*dim];
  look.sizes.erase(look.sizes.begin() + *dim);
  look.strides.erase(look.strides.begin() + *dim);
  return true;
}

/// slice.Tensor(Tensor self, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1)
bool slice(const Call& call, run::GeometryData& look) {
  const std::optional<size_t> dim = dim_of(call.args[1], look);
  if (!dim || !call.args[4].isInt() || call.args[4].toInt() <= 0) return false;
  const int64_t size = look.sizes[*dim], step = call.args[4].toInt();
  const auto place = [&](const c10::IValue& arg, int64_t absent) -> std::optional<int64_t> {
    if (arg.isNone()) return absent;
    if (!arg.isInt()) return std::nullopt;
    const int64_t number = arg.toInt() < 0 ? arg.toInt() + size : arg.toInt();
    return std::clamp<int64_t>(number, 0, size);
  };
  const std::optional<int64_t> start = place(call.args[2], 0);
  const std::optional<int64_t> end = place(call.args[3], size);
  if (!start || !end) return false;
  int64_t stride = 0;
  if (c10::mul_overflows(look.strides[*dim], step, &stride)) return false;
  const int64_t length = std::max<int64_t>(*end - *start, 0);
  look.offset += *start * look.strides[*dim];
  look.sizes[*dim] = length / step + (length % step != 0);
  look.strides[*dim] = stride;
  return true;
}

}  // namespace

PlanRef plan_of_offset_view(const Call& call) {
  using run::OffsetView;
  const OffsetView kind = call.info.offset_view;
  if (kind == OffsetView::none || !call.tensors[0].value || !call.looks[0]) return nullptr;
  run::GeometryData look = call.looks[0]->data();
  look.wrapped_number = false;
  if (!(kind == OffsetView::select ? select(call, look) : slice(call, look))) return nullptr;
  auto plan = make_ref<Plan>();
  plan->only_metadata = true;
  plan->outputs.push_back(
      {OutputPlan::Kind::view, 0, run::intern(std::move(look)), call.looks[0]->offset()});
  return plan;
}

}  // namespace lazyeng::record
