// csrc/fuse/plan.cpp: what decides a plan, and the table of plans.
#include "csrc/fuse/plan.h"

#include <algorithm>
#include <bit>
#include <mutex>
#include <unordered_map>

#include "csrc/fuse/bits/exact_rows.h"
#include "csrc/fuse/device/device_kernels.h"
#include "csrc/fuse/forms/forms.h"
#include "csrc/fuse/key.h"
#include "csrc/fuse/op_table.h"

namespace lazyeng::fuse {
namespace {

constexpr size_t kMaxPlans = 1 << 12;

/// Of a number only its kind counts, unless it decides which step is taken.
void add_number(const OpRule& rule, const c10::IValue& number, Key& key) {
  const c10::Scalar scalar = number.toScalar();
  key.push_back(static_cast<uint64_t>(scalar.type()) << 8 | 1);
  if (rule.form == Form::power) key.push_back(std::bit_cast<uint64_t>(step_exponent(scalar)));
  if (is_variance(rule.form)) key.push_back(leaves_freedom(scalar));
  if (rule.form == Form::binary_scaled || rule.form == Form::reversed)
    key.push_back(scalar.equal(1));
}

void add_argument(const OpRule& rule, const run::ArgInfo& info, const c10::IValue& value,
                  Key& key) {
  if (info.kind == run::ArgKind::scalar && value.isScalar()) return add_number(rule, value, key);
  key.push_back(static_cast<uint64_t>(value.isNone()));
  if (value.isInt()) key.push_back(static_cast<uint64_t>(value.toInt()));
  if (value.isBool()) key.push_back(value.toBool());
  if (value.isDouble() && rule.form != Form::layer_norm)  // (of that it is eps)
    key.push_back(std::bit_cast<uint64_t>(value.toDouble()));
  if (value.isIntList()) {
    const std::vector<int64_t> list = value.toIntVector();
    key.push_back(list.size());
    key.insert(key.end(), list.begin(), list.end());
  }
  if (value.isString()) key.push_back(std::hash<std::string_view>()(value.toStringView()));
}

/// As Registers::begin asks: a step that may refuse stays, whoever needs its result.
bool may_refuse(const Group& group, const Member& member) {
  const int16_t made = member.results[0];
  const c10::ScalarType result =
      made == kNone ? c10::ScalarType::Undefined : group.values[made].value->geometry().dtype();
  return may_refuse(*rule_of(member.node->info), *member.node, result);
}

void add_member(const Group& group, const Member& member, Key& key) {
  const run::Node& node = *member.node;
  const OpRule& rule = *rule_of(node.info);
  key.push_back(reinterpret_cast<uint64_t>(&node.info) | may_refuse(group, member));
  for (size_t i = 0; i < node.args.size(); ++i)
    if (node.info.args[i].kind != run::ArgKind::tensor)
      add_argument(rule, node.info.args[i], node.args[i], key);
  // (In torch's order a variance is divided where it is folded.)
  if (is_variance(rule.form) && node.device.is_cpu() && !allows_inexact(node.device))
    key.push_back(std::bit_cast<uint64_t>(correction_of(node)));
  for (size_t t = 0; t < member.operands.size(); ++t) {
    key.push_back(static_cast<uint64_t>(member.operands[t]));
    const at::Tensor& raw = node.tensors[t].raw;
    if (member.operands[t] == kNone && raw.defined())
      key.push_back(static_cast<uint64_t>(raw.scalar_type()) << 9 | raw.dim() << 1 |
                    raw.unsafeGetTensorImpl()->is_wrapped_number());
  }
  for (int16_t result : member.results) key.push_back(static_cast<uint64_t>(result));
}

/// What is the same elements is loaded once.
uint64_t first_like(const Group& group, const GroupValue& value) {
  const auto first = std::ranges::find_if(
      group.values, [&](const GroupValue& other) { return same_elements(other, value); });
  return static_cast<uint64_t>(first - group.values.begin());
}

Key key_of(const Group& group, const std::vector<bool>& needed) {
  Key key;
  key.reserve(8 * group.members.size());
  key.push_back(reinterpret_cast<uint64_t>(&best_kernels()));
  key.push_back(allows_inexact(group.members[0].node->device));
  key.push_back(static_cast<uint64_t>(c10::get_default_dtype_as_scalartype()));
  for (const Member& member : group.members) add_member(group, member, key);
  for (const GroupValue& value : group.values) {  // (where they begin is read at each run)
    key.push_back(reinterpret_cast<uint64_t>(&value.value->geometry().at_origin()));
    key.push_back(value.var);
    if (group.vars[value.var].values > 1) key.push_back(first_like(group, value));
  }
  for (size_t v = 0; v < group.vars.size(); ++v)
    key.push_back(static_cast<uint64_t>(group.vars[v].fresh) << 1 | needed[v]);
  return key;
}

struct Entry {
  std::vector<run::GeometryRef> looks;  // the key holds their addresses
  GroupPlanRef plan;
};

struct Table {
  std::mutex mutex;
  std::unordered_map<Key, Entry, HashKey> plans;
};

Table& table() {
  static Table* const instance = new Table;  // engine threads may outlive statics
  return *instance;
}

}  // namespace

GroupPlanRef find_plan(const Group& group, const std::vector<bool>& needed) {
  Key key = key_of(group, needed);
  {
    std::lock_guard lock(table().mutex);
    const auto found = table().plans.find(key);
    if (found != table().plans.end()) return found->second.plan;
  }
  Entry entry;
  for (const GroupValue& value : group.values)
    entry.looks.emplace_back(&value.value->geometry().at_origin());
  auto made = std::make_shared<GroupPlan>(lower(group, needed));
  if (!group.members[0].node->device.is_cpu()) made->kernels = std::make_shared<PlanKernels>();
  entry.plan = std::move(made);
  GroupPlanRef plan = entry.plan;
  decltype(table()
               .plans) dropped;  // after the lock: a plan may be the last to hold a module of CUDA
  std::lock_guard lock(table().mutex);
  if (table().plans.size() >= kMaxPlans) dropped.swap(table().plans);
  table().plans.emplace(std::move(key), std::move(entry));
  return plan;
}

size_t plan_count() {
  std::lock_guard lock(table().mutex);
  return table().plans.size();
}

}  // namespace lazyeng::fuse
