// csrc/fuse/candidate.cpp: what a program can take of a node.
#include "csrc/fuse/candidate.h"

#include <algorithm>

#include "csrc/fuse/device/device_kernels.h"
#include "csrc/fuse/extent.h"
#include "csrc/fuse/op_table.h"
#include "csrc/run/device/device_queues.h"

namespace lazyeng::fuse {
namespace {

bool known_look(const run::Geometry& look, c10::Device device) {
  Type type;
  return look.device() == device && look.numel() > 0 && !look.data().conj && !look.data().neg &&
         register_dtype(look.dtype(), type);
}

bool known_number(const at::Tensor& raw) {
  Type type;
  return raw.defined() && raw.layout() == c10::kStrided && raw.device().is_cpu() &&
         raw.numel() == 1 && register_dtype(raw.scalar_type(), type);
}

/// Arguments that are no tensors: what a program does not know of is left to the op.
bool known_arguments(const run::Node& node, const OpRule& rule) {
  const bool options = rule.form == Form::cast || rule.form == Form::fill ||
                       rule.form == Form::zero || rule.form == Form::one;
  for (size_t i = 0; i < node.args.size(); ++i) {
    const c10::IValue& arg = node.args[i];
    if (node.info.args[i].kind == run::ArgKind::tensor || arg.isNone()) continue;
    if (arg.isComplexDouble() || arg.isGenerator()) return false;
    // (A Python int of 2**63 or more, which only some of the dtypes know.)
    if (node.info.args[i].kind == run::ArgKind::scalar && !arg.isScalar()) return false;
    if (arg.isList() && !(is_reduction(rule.form) && (arg.isIntList() || arg.isBoolList())))
      return false;
    if (options && arg.isBool() && arg.toBool() && node.info.args[i].kind != run::ArgKind::scalar)
      return false;  // non_blocking, pin_memory
  }
  return true;
}

/// Kernels of devices cannot say that the item() of a tensor does not fit.
bool takes_unseen_item(const run::Node& node, const OpRule& rule) {
  if (rule.form != Form::masked_fill || node.device.is_cpu() || node.tensors.size() < 3)
    return false;
  const run::ValueRef& item = node.tensors[2].value;
  const run::ValueRef& self = node.tensors[0].value;
  return item && self && item->geometry().dtype() != self->geometry().dtype();
}

/// A program writes what is fresh in line. (`copy` keeps the strides of the tensor that it is not
/// written to.)
bool has_gaps(const run::Geometry& look) { return look.numel() > 0 && !look.dense(); }

bool find_results(run::Node& node, const OpRule& rule, const Extent& extent, Candidate& candidate) {
  if (candidate.in_place)
    candidate.results.push_back(node.tensors[0].value.get());
  else
    for (const run::ValueRef& output : node.outputs) candidate.results.push_back(output.get());
  for (size_t i = 0; i < candidate.results.size(); ++i) {
    Mapping& mapping = candidate.result_mappings.emplace_back();
    if (!candidate.results[i]) continue;
    mapping.look = &candidate.results[i]->geometry();
    if (!known_look(*mapping.look, node.device)) return false;
    // There when all tiles are done: nobody in the group reads it.
    mapping.parameter = extent.folds || is_folded_result(rule.form, i);
    if (extent.row && is_row_result(rule.form, i)) mapping.row = extent.row;
    const bool in_line = !candidate.in_place && !mapping.parameter && mapping.row == 0;
    if (in_line && has_gaps(*mapping.look)) return false;
  }
  return true;
}

bool find_looks(const run::Node& node, const Candidate& candidate,
                c10::SmallVector<const run::Geometry*, 4>& looks) {
  for (size_t i = 0; i < node.tensors.size(); ++i) {
    const run::TensorArg& arg = node.tensors[i];
    if (arg.written != (candidate.in_place && i == 0)) return false;
    const bool left_out = !arg.value && !arg.raw.defined();
    if (arg.value ? !known_look(arg.value->geometry(), node.device)
                  : !left_out && !known_number(arg.raw))
      return false;
    looks.push_back(arg.value ? &arg.value->geometry() : nullptr);
  }
  return true;
}

bool map_tensors(const run::Node& node, const Extent& extent,
                 c10::ArrayRef<const run::Geometry*> looks, Candidate& candidate) {
  if (!iterate(*extent.elements, looks, candidate.iteration, extent.outer)) return false;
  for (size_t i = 0; i < looks.size(); ++i) {
    Mapping& mapping = candidate.mappings.emplace_back();
    mapping.look = looks[i];
    mapping.strides = candidate.iteration.strides[i];
    mapping.parameter = looks[i] && looks[i]->numel() == 1 && extent.elements->numel() != 1;
    if (!mapping.strides.empty()) {
      mapping.row = constant_run(candidate.iteration.shape, mapping.strides);
      mapping.repeated = repeated_run(candidate.iteration.shape, mapping.strides);
    }
    const bool written = candidate.in_place && looks[i] &&
                         node.tensors[i].value->var_ref() == candidate.results[0]->var_ref();
    if (written && !same(mapping, candidate.mappings[0])) return false;
  }
  return true;
}

bool has_results(const run::Node& node, Form form) {
  if (node.info.writes) return node.tensors[0].value != nullptr;
  if (node.outputs.size() != node.info.returns.size()) return false;
  const auto missing = std::count(node.outputs.begin(), node.outputs.end(), nullptr);
  return has_mask(form) ? missing < static_cast<ptrdiff_t>(node.outputs.size()) : missing == 0;
}

c10::ScalarType result_dtype(const Candidate& candidate) {
  const auto made = std::find_if(candidate.results.begin(), candidate.results.end(),
                                 [](const run::Value* result) { return result != nullptr; });
  return (*made)->geometry().dtype();
}

/// torch 2.15 takes negative limits for bytes, and compares as if it had negative bytes. (Before,
/// it refuses them. clamp converts its numbers.)
bool has_limits_beyond(const run::Node& node, c10::ScalarType result) {
  return result == c10::ScalarType::Byte && node.info.base.starts_with("aten::hardtanh");
}

}  // namespace

bool Mapping::needs_shape(int64_t group_row) const {
  if (strides.empty()) return false;
  return !group_row || (row != group_row && repeated != group_row);
}

bool same(const Mapping& a, const Mapping& b) {
  if (a.parameter || b.parameter || a.row != b.row) return false;
  if (a.row || (a.strides.empty() && b.strides.empty()))
    return a.look->offset() == b.look->offset() && a.look->dtype() == b.look->dtype();
  return a.look == b.look && a.strides == b.strides;
}

bool Candidate::needs_shape(int64_t group_row) const {
  return std::any_of(mappings.begin(), mappings.end(), [group_row](const Mapping& mapping) {
    return mapping.needs_shape(group_row);
  });
}

bool Candidate::linear() const {
  return std::all_of(mappings.begin(), mappings.end(),
                     [](const Mapping& mapping) { return mapping.strides.empty(); });
}

bool describe(run::Node& node, Candidate& candidate) {
  const OpRule* rule = rule_of(node.info);
  if (!rule || !runs_groups(node.device) || !run::computes(node.queue) || !node.rewrites.empty() ||
      !has_results(node, rule->form) || !known_arguments(node, *rule))
    return false;
  if (takes_unseen_item(node, *rule)) return false;
  candidate.node = &node;
  candidate.in_place = node.info.writes;
  const Extent extent = extent_of(*rule, node);
  if (!extent.elements) return false;
  if (!node.device.is_cpu() && !has_kernels(rule->form, extent)) return false;
  candidate.folds = extent.folds;
  candidate.row = extent.row;
  c10::SmallVector<const run::Geometry*, 4> looks;
  if (!find_results(node, *rule, extent, candidate) || !find_looks(node, candidate, looks))
    return false;
  const c10::ScalarType result = result_dtype(candidate);
  if (has_limits_beyond(node, result)) return false;
  const Bits bits = bits_of(*rule, node, result, extent);
  const bool inexact = allows_inexact(node.device);
  candidate.checked = (inexact ? refuses_doubtful(*rule, node, result) : bits == Bits::checked) ||
                      may_refuse(*rule, node, result);
  if (candidate.checked && !node.device.is_cpu()) return false;  // (their kernels do not check)
  if (bits == Bits::other && !inexact) return false;
  candidate.in_shares =
      extent.folds && bits == Bits::same && !inexact && c10::isFloatingType(result);
  return map_tensors(node, extent, looks, candidate);
}

}  // namespace lazyeng::fuse
