// csrc/fuse/partition.cpp: one pass over a window.
#include "csrc/fuse/partition.h"

#include <atomic>

#include "csrc/fuse/op_table.h"

namespace lazyeng::fuse {
namespace {

constexpr size_t kMaxMembers = 128;
/// With fewer elements, what a program may round otherwise is left to torch's own kernel in any
/// case: going over the cache once more costs next to nothing.
constexpr int64_t kLeastInexact = 1 << 15;

std::atomic<bool> inexact{false};

bool may_round_otherwise(int64_t numel) {
  return numel >= kLeastInexact && inexact.load(std::memory_order_relaxed);
}

bool known_look(const run::Geometry& look) {
  Type type;
  return look.device().is_cpu() && look.numel() > 0 && !look.data().conj && !look.data().neg &&
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
    if (arg.isList() && !is_reduction(rule.form)) return false;
    if (options && arg.isBool() && arg.toBool() && node.info.args[i].kind != run::ArgKind::scalar)
      return false;  // non_blocking, pin_memory
  }
  return true;
}

/// Whether a reduction leaves one element of many.
bool folds_all(const run::Node& node, const run::Value& result) {
  return result.geometry().numel() == 1 && node.tensors.size() == 1 && node.tensors[0].value &&
         node.tensors[0].value->geometry().numel() > 1;
}

run::StorageVar& var_of(const engine::Access& claim) {
  return static_cast<run::StorageVar&>(*claim.var);  // the recorder makes no other vars
}

}  // namespace

void set_inexact(bool on) { inexact.store(on, std::memory_order_relaxed); }

bool Partition::describe(run::Node& node, Candidate& candidate) {
  const OpRule* rule = rule_of(node.info);
  if (!rule || node.queue != engine::QueueId::cpu || !node.rewrites.empty() ||
      !known_arguments(node, *rule))
    return false;
  candidate.node = &node;
  candidate.in_place = node.info.writes;
  candidate.folds = is_reduction(rule->form);
  if (candidate.in_place)
    candidate.result = node.tensors[0].value.get();
  else if (node.outputs.size() == 1)
    candidate.result = node.outputs[0].get();
  return candidate.result && known_look(candidate.result->geometry()) &&
         describe_tensors(node, candidate);
}

bool Partition::describe_tensors(run::Node& node, Candidate& candidate) {
  if (candidate.folds && !folds_all(node, *candidate.result)) return false;
  // A reduction goes over what it folds.
  const run::Geometry& elements =
      candidate.folds ? node.tensors[0].value->geometry() : candidate.result->geometry();
  c10::SmallVector<const run::Geometry*, 4> looks;
  for (size_t i = 0; i < node.tensors.size(); ++i) {
    const run::TensorArg& arg = node.tensors[i];
    if (arg.written != (candidate.in_place && i == 0)) return false;
    if (arg.value ? !known_look(arg.value->geometry()) : !known_number(arg.raw)) return false;
    looks.push_back(arg.value ? &arg.value->geometry() : nullptr);
  }
  if (!may_round_otherwise(elements.numel()) &&
      !gives_same_bits(*rule_of(node.info), node, candidate.result->geometry().dtype()))
    return false;
  if (!iterate(elements, looks, candidate.iteration)) return false;
  for (size_t i = 0; i < looks.size(); ++i) {
    Mapping& mapping = candidate.mappings.emplace_back();
    mapping.look = looks[i];
    mapping.strides = candidate.iteration.strides[i];
    mapping.parameter = looks[i] && looks[i]->numel() == 1 && elements.numel() != 1;
    const bool written = candidate.in_place && looks[i] &&
                         node.tensors[i].value->var_ref() == candidate.result->var_ref();
    if (written && !same(mapping, candidate.mappings[0])) return false;
  }
  return true;
}

bool Partition::same(const Mapping& a, const Mapping& b) {
  if (a.parameter || b.parameter) return false;
  if (a.strides.empty() && b.strides.empty())
    return a.look->offset() == b.look->offset() && a.look->dtype() == b.look->dtype();
  return a.look == b.look && a.strides == b.strides;
}

Partition::VarState& Partition::state(run::StorageVar& var) {
  if (var.partition_index >= states_.size() || states_[var.partition_index].var != &var) {
    var.partition_index = static_cast<uint32_t>(states_.size());
    states_.push_back({&var, {}});
  }
  return states_[var.partition_index];
}

int Partition::slot_in(size_t open, run::StorageVar& var) {
  const auto& in = state(var).in[open];
  return in.serial != 0 && in.serial == open_[open].serial ? in.slot : -1;
}

bool Partition::conflicts(size_t open, const run::Node& node) {
  for (const engine::Access& claim : node.claims()) {
    const int slot = slot_in(open, var_of(claim));
    if (slot >= 0 && (claim.write || open_[open].group->vars[slot].written)) return true;
  }
  return false;
}

bool Partition::fits(size_t open, run::StorageVar& var, const Mapping& mapping, bool writes) {
  const int slot = slot_in(open, var);
  if (slot < 0 || !(writes || open_[open].group->vars[slot].written)) return true;
  const VarUse& use = open_[open].uses[slot];
  return !use.several && same(use.first, mapping);
}

bool Partition::fits(size_t open, const Candidate& candidate) {
  const Group& group = *open_[open].group;
  const Dims& shape = candidate.iteration.shape;
  if (group.numel != candidate.iteration.numel || group.members.size() >= kMaxMembers) return false;
  if (group.members[0].node->settings != candidate.node->settings) return false;
  if (shape.size() > 1 && group.shape.size() > 1 && shape != group.shape) return false;
  for (size_t i = 0; i < candidate.mappings.size(); ++i) {
    const run::TensorArg& arg = candidate.node->tensors[i];
    if (arg.value && !fits(open, arg.value->var(), candidate.mappings[i], arg.written))
      return false;
  }
  return true;
}

/// The open group that the node joins; an empty one if none fits.
size_t Partition::place_for(const Candidate& candidate) {
  size_t oldest = 0;
  for (size_t k = 0; k < kOpen; ++k) {
    if (open_[k].serial && fits(k, candidate)) return k;
    if (open_[k].used < open_[oldest].used) oldest = k;
  }
  for (size_t k = 0; k < kOpen; ++k)
    if (!open_[k].serial) return k;
  close(oldest);
  return oldest;
}

uint16_t Partition::add_var(size_t open, run::StorageVar& var, const Mapping& mapping) {
  const int known = slot_in(open, var);
  Open& to = open_[open];
  if (known >= 0) {
    to.uses[known].several |= !same(to.uses[known].first, mapping);
    return static_cast<uint16_t>(known);
  }
  const auto slot = static_cast<uint16_t>(to.uses.size());
  to.uses.push_back({mapping, mapping.parameter, kNone});
  to.group->vars.push_back({&var});
  state(var).in[open] = {to.serial, slot};
  return slot;
}

int16_t Partition::add_value(size_t open, run::Value& value, const Mapping& mapping) {
  Open& to = open_[open];
  const uint16_t var = add_var(open, value.var(), mapping);
  for (int16_t v = to.uses[var].last_value; v != kNone; v = to.previous_value[v])
    if (to.group->values[v].value == &value) {
      ++to.group->values[v].references;
      return v;
    }
  to.group->values.push_back({&value, var, 1});
  ++to.group->vars[var].values;
  to.previous_value.push_back(to.uses[var].last_value);
  return to.uses[var].last_value = static_cast<int16_t>(to.group->values.size() - 1);
}

void Partition::join(size_t open, const Candidate& candidate, Ref<engine::Op> op) {
  Open& to = open_[open];
  if (!to.serial) {
    to.serial = ++last_serial_;
    to.group = make_ref<Group>();
    to.group->numel = candidate.iteration.numel;
    to.uses.clear();
    to.previous_value.clear();
  }
  to.used = ++clock_;
  if (candidate.iteration.shape.size() >= to.group->shape.size())
    to.group->shape = candidate.iteration.shape;
  const bool first_use = slot_in(open, candidate.result->var()) < 0;
  Member member;
  for (size_t i = 0; i < candidate.mappings.size(); ++i) {
    const run::ValueRef& value = candidate.node->tensors[i].value;
    member.operands.push_back(value ? add_value(open, *value, candidate.mappings[i]) : kNone);
  }
  if (candidate.in_place) {
    member.result = member.operands[0];
    GroupVar& var = to.group->vars[to.group->values[member.result].var];
    const engine::Access& claim = candidate.node->claims()[0];
    var.overwrites |= first_use && claim.overwrites;
    var.written = true;
  } else {
    Mapping linear;
    linear.look = &candidate.result->geometry();
    linear.parameter =
        candidate.folds;  // there when all tiles are done: nobody in the group reads it
    member.result = add_value(open, *candidate.result, linear);
    GroupVar& var = to.group->vars[to.group->values[member.result].var];
    var.fresh = var.written = var.overwrites = true;
  }
  member.node = Ref<run::Node>::adopt(static_cast<run::Node*>(op.detach()));
  to.group->members.push_back(std::move(member));
}

void Partition::close(size_t open) {
  Open& from = open_[open];
  from.serial = 0;
  const Ref<Group> group = std::exchange(from.group, nullptr);
  if (group->members.size() == 1) return out_.push_back(std::move(group->members[0].node));
  if (!only_plans_) group->claim();
  out_.push_back(group);
}

Partition::Batch Partition::run(Batch nodes) {
  out_.clear();
  out_.reserve(nodes.size());
  states_.clear();
  for (Ref<engine::Op>& op : nodes) {
    auto& node = static_cast<run::Node&>(*op);
    Candidate candidate;
    const bool joins = describe(node, candidate);
    const size_t place = joins ? place_for(candidate) : kOpen;
    for (size_t k = 0; k < kOpen; ++k)
      if (k != place && open_[k].serial && conflicts(k, node)) close(k);
    if (joins)
      join(place, candidate, std::move(op));
    else
      out_.push_back(std::move(op));
  }
  for (;;) {  // the rest, oldest first: which comes first does not matter, but should not vary
    size_t oldest = kOpen;
    for (size_t k = 0; k < kOpen; ++k)
      if (open_[k].serial && (oldest == kOpen || open_[k].serial < open_[oldest].serial))
        oldest = k;
    if (oldest == kOpen) break;
    close(oldest);
  }
  return std::move(out_);
}

std::vector<std::vector<Ref<run::Node>>> Partition::plan(const Batch& nodes) {
  only_plans_ = true;
  const Batch ops = run(nodes);
  only_plans_ = false;
  std::vector<std::vector<Ref<run::Node>>> planned;
  for (const Ref<engine::Op>& op : ops) {
    auto& together = planned.emplace_back();
    if (auto* group = dynamic_cast<Group*>(op.get()))
      for (const Member& member : group->members) together.push_back(member.node);
    else
      together.emplace_back(static_cast<run::Node*>(op.get()));
  }
  return planned;
}

}  // namespace lazyeng::fuse
