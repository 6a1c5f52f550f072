// csrc/record/costs.cpp: which calls are brief, and which one core may do.
#include "csrc/record/costs.h"

#include <algorithm>

namespace lazyeng::record {
namespace {

/// All tensors of the call together fit the first-level cache, more or less.
bool is_brief(const Call& call, const Plan& plan) {
  constexpr uint64_t kMostBytes = 1 << 16;
  uint64_t bytes = 0;
  const auto small = [&](const run::GeometryRef& look) {
    if (!look) return true;
    bytes += look->span_bytes();
    return look->device().is_cpu() && bytes <= kMostBytes;
  };
  return std::all_of(call.looks.begin(), call.looks.end(), small) &&
         std::all_of(plan.outputs.begin(), plan.outputs.end(),
                     [&](const OutputPlan& output) { return small(output.geometry); });
}

bool is_list(const run::ArgInfo& arg) {
  return arg.kind == run::ArgKind::tensor_list || arg.kind == run::ArgKind::optional_tensor_list;
}

/// Most elementwise kernels fan out from 32,768 elements, those of MKL's functions from 2,048.
constexpr uint64_t kElementsFanOut = 2048 * sizeof(float);

/// All tensors but numbers lie in one way, side by side: the kernel goes over them as over one row.
bool are_alike(const std::vector<run::GeometryRef>& tensors) {
  const run::Geometry* first = nullptr;
  for (const run::GeometryRef& tensor : tensors) {
    if (!tensor || tensor->numel() == 1) continue;
    if (!tensor->dense()) return false;
    if (first && (first->sizes() != tensor->sizes() || first->strides() != tensor->strides()))
      return false;
    first = tensor.get();
  }
  return first;
}

/// Null: the kernel starts no helpers by itself, or has work for all cores, or must have them.
Ref<run::Width> width_for(const Call& call, const Plan& plan) {
  if (plan.run_now || plan.only_metadata || call.looks.size() != call.tensors.size())
    return nullptr;
  const run::Work work = call.info.work;
  const bool copies = work == run::Work::copies || work == run::Work::lookups;
  if (!copies && std::any_of(call.info.args.begin(), call.info.args.end(), is_list)) return nullptr;
  std::vector<run::GeometryRef> tensors(call.looks.begin(), call.looks.end());
  for (const OutputPlan& output : plan.outputs) tensors.push_back(output.geometry);
  uint64_t most_bytes = 0;
  for (const run::GeometryRef& tensor : tensors) {
    if (!tensor) continue;
    if (!tensor->device().is_cpu()) return nullptr;
    most_bytes = std::max(most_bytes, tensor->span_bytes());
  }
  if (tensors.empty()) return nullptr;
  if ((copies || work == run::Work::elements) && most_bytes < kElementsFanOut) return nullptr;
  if (run::microseconds_on_one_core(call.info, tensors, call.looks.size()) >= run::kWorthAllCores)
    return nullptr;
  if (work == run::Work::elements && !are_alike(tensors)) return nullptr;
  return make_ref<run::Width>(call.info, tensors[0] ? tensors[0]->numel() : 0);
}

}  // namespace

void add_costs(const Call& call, Plan& plan) {
  plan.brief = is_brief(call, plan);
  plan.width = width_for(call, plan);
}

}  // namespace lazyeng::record
