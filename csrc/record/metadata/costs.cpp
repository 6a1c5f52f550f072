// csrc/record/metadata/costs.cpp: which calls are brief, and which one core may do.
#include "csrc/record/metadata/costs.h"

#include <algorithm>

namespace lazyeng::record {
namespace {

/// Most elementwise kernels fan out from 32,768 elements, those of MKL's functions from 2,048.
constexpr uint64_t kBytesFanOut = 2048 * sizeof(float);

/// Microseconds from which a BLAS may use helpers (1,000 flops, far fewer than pay: MKL wakes one
/// for [5, 16] by [16, 64], and even for [2, 100] by [100, 4]).
constexpr double kProductFansOut = 1.0 / 60;

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

/// The arguments (null: none, or a table), then the results. Empty: some of them are not the CPU's.
std::vector<run::GeometryRef> tensors_of(const Call& call, const CallPlan& plan) {
  std::vector<run::GeometryRef> tensors(call.looks.begin(), call.looks.end());
  for (const OutputPlan& output : plan.outputs) tensors.push_back(output.geometry);
  const auto elsewhere = [](const run::GeometryRef& tensor) {
    return tensor && !tensor->device().is_cpu();
  };
  if (std::any_of(tensors.begin(), tensors.end(), elsewhere)) tensors.clear();
  run::leave_out_table(call.info, tensors);
  return tensors;
}

/// All tensors of the call together fit the second-level cache with ease, and none has so many
/// elements that kernels fan out for them. (Who waits runs such an op: a team of helpers of that
/// thread's own would stop those of the engine's threads from spinning, which cost a SAC step a
/// third of its time, and let a step of ResNet-18 wake its helper 300 times.)
bool are_small(const std::vector<run::GeometryRef>& tensors) {
  constexpr uint64_t kMostBytes = 1 << 17;
  constexpr int64_t kFanOut = 1 << 15;
  uint64_t bytes = 0;
  for (const run::GeometryRef& tensor : tensors) {
    if (!tensor) continue;
    if (tensor->numel() >= kFanOut) return false;
    bytes += static_cast<uint64_t>(tensor->numel()) * c10::elementSize(tensor->dtype());
  }
  return bytes <= kMostBytes;
}

bool starts_helpers(const Call& call, const std::vector<run::GeometryRef>& tensors) {
  const run::Work work = call.info.work;
  const bool copies = work == run::Work::copies || work == run::Work::lookups;
  const auto is_list = [](const run::ArgInfo& arg) { return run::is_list(arg.kind); };
  if (!copies && std::any_of(call.info.args.begin(), call.info.args.end(), is_list)) return false;
  uint64_t most_bytes = 0;
  for (const run::GeometryRef& tensor : tensors)
    if (tensor) most_bytes = std::max(most_bytes, tensor->span_bytes());
  return !(copies || work == run::Work::elements) || most_bytes >= kBytesFanOut ||
         call.info.fans_out;
}

/// What an elementwise call writes, or else returns first; null: nothing that has elements.
const run::Geometry* result_of(const Call& call, const CallPlan& plan) {
  for (size_t i = 0; i < call.looks.size(); ++i)
    if (call.tensors[i].written) return call.looks[i].get();
  return plan.outputs.empty() ? nullptr : plan.outputs[0].geometry.get();
}

/// Of an elementwise call.
run::RowShares shares_of(const run::Geometry& result,
                         const std::vector<run::GeometryRef>& tensors) {
  return are_alike(tensors) ? run::RowShares(result.numel()) : run::RowShares(result);
}

Ref<run::Width> width_of(const Call& call, const CallPlan& plan,
                         const std::vector<run::GeometryRef>& tensors, double microseconds) {
  if (call.info.work != run::Work::elements)
    return make_ref<run::Width>(call.info, microseconds, std::nullopt);
  const run::Geometry* const result = result_of(call, plan);
  if (!result) return nullptr;
  return make_ref<run::Width>(call.info, microseconds, shares_of(*result, tensors));
}

/// Sums of narrow dtypes are rounded so far that a trial seldom shows in which order they were
/// made; so are scaled products, added to what is large beside them.
bool hides_its_order(const Call& call, const std::vector<run::GeometryRef>& tensors) {
  const run::Work work = call.info.work;
  if (work == run::Work::product && is_scaled(call)) return true;
  if (work != run::Work::product && work != run::Work::convolution && work != run::Work::rows &&
      work != run::Work::recurrent)
    return false;
  return std::any_of(tensors.begin(), tensors.end(), [](const run::GeometryRef& tensor) {
    return tensor && c10::isReducedFloatingType(tensor->dtype());
  });
}

}  // namespace

void add_costs(const Call& call, CallPlan& plan) {
  if (plan.must_run || plan.only_metadata || call.looks.size() != call.tensors.size()) return;
  const std::vector<run::GeometryRef> tensors = tensors_of(call, plan);
  if (tensors.empty()) return;
  const double microseconds = run::microseconds_on_one_core(call.info, tensors, call.looks.size());
  if (microseconds < run::kAlwaysAllCores && !call.info.other_on_one_core &&
      !hides_its_order(call, tensors) && starts_helpers(call, tensors))
    plan.width = width_of(call, plan, tensors, microseconds);
  plan.small = are_small(tensors);
  plan.fans_out = call.info.fans_out ||
                  (call.info.work == run::Work::product && microseconds >= kProductFansOut);
  if (!plan.width && (!plan.small || plan.fans_out))
    plan.width = make_ref<run::Width>(microseconds);
}

}  // namespace lazyeng::record
