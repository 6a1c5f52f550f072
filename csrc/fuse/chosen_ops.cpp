// csrc/fuse/chosen_ops.cpp: the names of the table.
#include "csrc/fuse/chosen_ops.h"

#include <atomic>
#include <unordered_map>
#include <unordered_set>

#include "csrc/fuse/device/device_kernels.h"
#include "csrc/fuse/op_table.h"
#include "csrc/run/device/device_queues.h"

namespace lazyeng::fuse {
namespace {

struct Names {
  std::unordered_set<std::string> alone;
  std::unordered_map<std::string, std::unordered_set<std::string>> followers;
  std::unordered_set<std::string> lists;
};

std::atomic<const Names*> chosen{nullptr};

/// Null if no hand-written kernel may run it: their last bits are not torch's.
const Names* names_for(const run::Node& node) {
  if (node.device.is_cpu() || !node.info.aten) return nullptr;
  const Names* const names = chosen.load(std::memory_order_acquire);
  return names && runs_groups(node.device) && allows_inexact(node.device) ? names : nullptr;
}

bool is_plain(const run::Node& node) {
  return run::computes(node.queue) && node.rewrites.empty() && !node.info.writes &&
         !node.outputs.empty() && node.outputs[0];
}

/// Element i in memory is element i in the order of the dims.
bool is_row_major(const run::Geometry& look) {
  int64_t expected = 1;
  for (size_t d = look.sizes().size(); d-- > 0;) {
    if (look.sizes()[d] != 1 && look.strides()[d] != expected) return false;
    expected *= look.sizes()[d];
  }
  return true;
}

/// The same elements, in the same order, perhaps in another shape.
bool same_memory_in_order(const run::Value& a, const run::Value& b) {
  if (&a == &b) return true;
  const run::Geometry &x = a.geometry(), &y = b.geometry();
  return a.var_ref() == b.var_ref() && x.numel() == y.numel() && x.dtype() == y.dtype() &&
         x.offset() == y.offset() && is_row_major(x) && is_row_major(y);
}

}  // namespace

void set_chosen_ops(const std::vector<std::string>& alone, const Pairs& pairs,
                    const std::vector<std::string>& lists) {
  auto names = new Names;  // (never freed: engine threads may outlive statics)
  names->alone.insert(alone.begin(), alone.end());
  names->lists.insert(lists.begin(), lists.end());
  for (const auto& [first, second] : pairs) names->followers[first].insert(second);
  chosen.store(names, std::memory_order_release);
  rules_changed();
}

bool is_chosen(const run::Node& node) {
  const Names* const names = names_for(node);
  return names && names->alone.contains(node.info.name);
}

bool begins_pair(const run::Node& node) {
  const Names* const names = names_for(node);
  return names && names->followers.contains(node.info.name) && is_plain(node);
}

bool are_pair(const run::Node& first, const run::Node& second) {
  if (second.tensors.empty() || !second.tensors[0].value ||
      !same_memory_in_order(*second.tensors[0].value, *first.outputs[0]))
    return false;
  if (!is_plain(second) || second.device != first.device || second.stream_id != first.stream_id ||
      second.settings != first.settings)
    return false;
  const Names* const names = names_for(first);
  if (!names) return false;
  const auto found = names->followers.find(first.info.name);
  return found != names->followers.end() && found->second.contains(second.info.name);
}

int64_t lists_of(const run::Node& node) {
  const Names* const names = names_for(node);
  if (!names || !names->lists.contains(node.info.name) || !run::computes(node.queue) ||
      !node.rewrites.empty())
    return 0;
  int64_t length = 0;
  for (size_t i = 0; i < node.args.size(); ++i) {
    const run::ArgKind kind = node.info.args[i].kind;
    if (kind == run::ArgKind::tensor) return 0;
    if (kind != run::ArgKind::tensor_list) continue;
    if (!node.args[i].isInt() || (length != 0 && node.args[i].toInt() != length)) return 0;
    length = node.args[i].toInt();
  }
  for (const run::TensorArg& arg : node.tensors)
    if (!arg.value) return 0;
  for (const run::ValueRef& output : node.outputs)
    if (!output) return 0;
  return length;
}

}  // namespace lazyeng::fuse
