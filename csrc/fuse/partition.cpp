// csrc/fuse/partition.cpp: one pass over a window.
#include "csrc/fuse/partition.h"

#include <algorithm>
#include <bit>

#include "csrc/fuse/chosen_ops.h"

namespace lazyeng::fuse {
namespace {

constexpr size_t kMaxMembers = 128;
/// Of a chain over lists. (Places of values are int16_t.)
constexpr size_t kMaxValues = 1 << 14;
constexpr size_t kNowhere = ~size_t{0};
/// So many, on a device, and from then on only what goes on with what the group has made.
constexpr size_t kSettled = 16;
/// From here on a group goes over tensors of one component only.
constexpr int64_t kManyElements = 8192;
/// Of operands that a group waits for: they stay in a core's second cache.
constexpr uint64_t kMaxLateBytes = 1 << 20;

run::StorageVar& var_of(const engine::Access& claim) {
  return static_cast<run::StorageVar&>(*claim.var);  // the recorder makes no other vars
}

/// Of a node that does its work once for each row: what is linear for it.
Mapping once_a_row(Mapping mapping, const Group& group) {
  if (!mapping.parameter) mapping.row = group.row;
  return mapping;
}

/// The most values that a group gets by the node.
size_t uses_of(const run::Node& node) { return node.tensors.size() + node.outputs.size(); }

/// Whether the lists have memory in common only where they have the same tensor at one place.
bool are_apart(const run::Node& node, int64_t length) {
  std::vector<std::pair<const run::StorageVar*, size_t>> vars;
  for (size_t i = 0; i < node.tensors.size(); ++i)
    vars.emplace_back(&node.tensors[i].value->var(), i);
  std::sort(vars.begin(), vars.end());
  for (size_t k = 1; k < vars.size(); ++k) {
    const size_t a = vars[k - 1].second, b = vars[k].second;
    if (vars[k - 1].first == vars[k].first &&
        (node.tensors[a].value != node.tensors[b].value || (b - a) % static_cast<size_t>(length)))
      return false;
  }
  return true;
}

}  // namespace

Partition::VarState& Partition::state(run::StorageVar& var) {
  if (var.partition_index >= states_.size() || states_[var.partition_index].var != &var) {
    var.partition_index = static_cast<uint32_t>(states_.size());
    VarState& made = states_.emplace_back();
    made.var = &var;
    made.parent = var.partition_index;
  }
  return states_[var.partition_index];
}

uint32_t Partition::representative(uint32_t state) {
  while (states_[state].parent != state)
    state = states_[state].parent = states_[states_[state].parent].parent;
  return state;
}

uint32_t Partition::component_of(const Candidate& candidate) {
  const auto of = [&](run::StorageVar& var) {
    state(var);
    return representative(var.partition_index);
  };
  for (size_t i = 0; i < candidate.mappings.size(); ++i) {
    const run::ValueRef& value = candidate.node->tensors[i].value;
    if (value && !candidate.mappings[i].parameter) return of(value->var());
  }
  for (run::Value* result : candidate.results)
    if (result) return of(result->var());
  return kNoComponent;
}

/// All vars that it goes over are of one component from now on.
void Partition::connect(const Candidate& candidate) {
  if (candidate.iteration.numel < kManyElements) return;
  const uint32_t root = component_of(candidate);
  const auto add = [&](run::StorageVar& var) {
    state(var);
    states_[representative(var.partition_index)].parent = root;
  };
  for (size_t i = 0; i < candidate.mappings.size(); ++i) {
    const run::ValueRef& value = candidate.node->tensors[i].value;
    if (value && !candidate.mappings[i].parameter) add(value->var());
  }
  for (run::Value* result : candidate.results)
    if (result) add(result->var());
}

void Partition::describe_all(const Batch& nodes) {
  states_.clear();
  candidates_.clear();
  candidates_.resize(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    auto& node = static_cast<run::Node&>(*nodes[i]);
    if (describe(node, candidates_[i]))
      connect(candidates_[i]);
    else
      candidates_[i].node = nullptr;
  }
}

int Partition::slot_in(size_t open, run::StorageVar& var) {
  const VarState& known = state(var);
  return known.used_by >> open & 1 ? known.slots[open] : -1;
}

bool Partition::conflicts(size_t open, const run::Node& node) {
  for (const engine::Access& claim : node.claims()) {
    const int slot = slot_in(open, var_of(claim));
    if (slot >= 0 && (claim.write || open_[open].group->vars[slot].written)) return true;
  }
  return false;
}

void Partition::note_writes(const run::Node& node) {
  for (const engine::Access& claim : node.claims())
    if (claim.write) state(var_of(claim)).written_at = at_;
}

/// Each open group that the node conflicts with. (A kernel of a custom op may read, unseen, what
/// was recorded before it: that must not become a part of what waits for the kernel.)
void Partition::close_those_in_conflict(const run::Node& node, size_t but) {
  const bool custom = node.queue == engine::QueueId::python;
  uint32_t asked = custom ? open_now_ : 0;
  for (const engine::Access& claim : node.claims()) asked |= state(var_of(claim)).used_by;
  if (but != kNowhere) asked &= ~(uint32_t{1} << but);
  for (; asked != 0; asked &= asked - 1) {
    const auto open = static_cast<size_t>(std::countr_zero(asked));
    if (custom || conflicts(open, node)) close(open);
  }
}

bool Partition::fits(size_t open, run::StorageVar& var, const Mapping& mapping, bool writes) {
  const int slot = slot_in(open, var);
  if (slot < 0 || !(writes || open_[open].group->vars[slot].written)) return true;
  const VarUse& use = open_[open].uses[slot];
  return !use.several && same(use.first, mapping);
}

/// Whether the node goes over what members have made of each row, one element a row.
bool Partition::is_done_by_row(size_t open, const Candidate& candidate) {
  const Group& group = *open_[open].group;
  if (!group.row || candidate.row || candidate.folds || !candidate.linear() ||
      candidate.iteration.numel * group.row != group.numel)
    return false;
  for (size_t i = 0; i < candidate.mappings.size(); ++i) {
    const run::TensorArg& arg = candidate.node->tensors[i];
    const int slot = arg.value ? slot_in(open, arg.value->var()) : -1;
    if (slot >= 0 && open_[open].uses[slot].first.row == group.row) return true;
  }
  return false;
}

/// Whether the group would write nothing that its members may have to read once more.
bool Partition::may_run_twice(size_t open, const Candidate& candidate) {
  const Group& group = *open_[open].group;
  if (!candidate.in_place) return !group.writes_old;
  const int slot = slot_in(open, candidate.results[0]->var());
  return slot >= 0 && group.vars[slot].fresh;
}

/// Each other group of a device has a kernel of its own to be compiled. So the end of a chain of
/// ops ends a group that is long enough, and not where a window happens to be cut: then the steps
/// of a loop are the same groups each time.
bool Partition::may_grow_by(size_t open, const Candidate& candidate) {
  const Group& group = *open_[open].group;
  if (group.members.size() < kSettled || candidate.node->device.is_cpu()) return true;
  return std::ranges::any_of(candidate.node->tensors, [&](const run::TensorArg& arg) {
    const int slot = arg.value ? slot_in(open, arg.value->var()) : -1;
    return slot >= 0 && group.vars[slot].written;
  });
}

/// Of the node's operands, those that others have made since the group was opened.
uint64_t Partition::late_bytes(size_t open, const Candidate& candidate) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < candidate.mappings.size(); ++i) {
    const run::ValueRef& value = candidate.node->tensors[i].value;
    if (!value || candidate.mappings[i].parameter || slot_in(open, value->var()) >= 0) continue;
    if (state(value->var()).written_at > open_[open].opened_at)
      bytes += value->geometry().span_bytes();
  }
  return bytes;
}

bool Partition::fits(size_t open, const Candidate& candidate) {
  const Group& group = *open_[open].group;
  if (!group.row && group.numel != candidate.iteration.numel) return false;
  if (group.members.size() >= kMaxMembers || !may_grow_by(open, candidate)) return false;
  if ((group.checked || candidate.checked) && !may_run_twice(open, candidate)) return false;
  if ((group.in_shares && candidate.row) || (candidate.in_shares && group.row)) return false;
  const run::Node& first = *group.members[0].node;
  if (first.settings != candidate.node->settings || first.device != candidate.node->device ||
      first.stream_id != candidate.node->stream_id || first.behind != candidate.node->behind)
    return false;
  const bool by_row = is_done_by_row(open, candidate);
  if (!by_row) {
    if (group.numel != candidate.iteration.numel) return false;
    if (candidate.row && group.row && candidate.row != group.row) return false;
    if (!group.shape.empty() && candidate.needs_shape(group.row) &&
        candidate.iteration.shape != group.shape)
      return false;
  }
  for (size_t i = 0; i < candidate.mappings.size(); ++i) {
    const run::TensorArg& arg = candidate.node->tensors[i];
    if (!arg.value) continue;
    const Mapping mapping =
        by_row ? once_a_row(candidate.mappings[i], group) : candidate.mappings[i];
    if (!fits(open, arg.value->var(), mapping, arg.written)) return false;
  }
  return !candidate.node->device.is_cpu() ||
         open_[open].late_bytes + late_bytes(open, candidate) <= kMaxLateBytes;
}

/// The open group that the node joins; an empty one if none fits.
size_t Partition::place_for(const Candidate& candidate) {
  const bool large = candidate.iteration.numel >= kManyElements;
  const uint32_t component = large ? component_of(candidate) : kNoComponent;
  size_t oldest = 0;
  for (size_t k = 0; k < kOpen; ++k) {
    if (is_open(k) && (!large || open_[k].component == component) && fits(k, candidate)) return k;
    if (open_[k].used < open_[oldest].used) oldest = k;
  }
  const auto free = static_cast<size_t>(std::countr_one(open_now_));
  if (free < kOpen) return free;
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
  VarState& known_now = state(var);
  known_now.used_by |= uint32_t{1} << open;
  known_now.slots[open] = slot;
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

void Partition::open_group(size_t open) {
  Open& to = open_[open];
  to.serial = ++last_serial_;
  open_now_ |= uint32_t{1} << open;
  to.component = kNoComponent;
  to.opened_at = at_;
  to.late_bytes = 0;
  to.group = make_ref<Group>();
  to.uses.clear();
  to.previous_value.clear();
}

/// Whether the node has all that it shares with the chain at the same places of its lists, as the
/// same tensors.
bool Partition::fits_lists(const run::Node& node, int64_t length) {
  const Open& chain = open_[kLists];
  const Group& group = *chain.group;
  const run::Node& first = *group.members[0].node;
  if (chain.length != length || group.members.size() >= kMaxMembers ||
      group.values.size() + uses_of(node) > kMaxValues || first.settings != node.settings ||
      first.device != node.device || first.stream_id != node.stream_id)
    return false;
  for (size_t i = 0; i < node.tensors.size(); ++i) {
    const int slot = slot_in(kLists, node.tensors[i].value->var());
    if (slot < 0) continue;
    const VarUse& use = chain.uses[slot];
    if (use.place != static_cast<int64_t>(i) % length ||
        group.values[use.last_value].value != node.tensors[i].value.get())
      return false;
  }
  return true;
}

/// The slot of a pair or of a chain that the node joins or opens; kNowhere if it does neither.
size_t Partition::special_place(const run::Node& node) {
  const bool ends_pair = is_open(kPair) && are_pair(*open_[kPair].group->members[0].node, node);
  if (ends_pair) return kPair;
  if (begins_pair(node)) {
    if (is_open(kPair)) close(kPair);  // (there is one at a time)
    return kPair;
  }
  const int64_t length = lists_of(node);
  if (length == 0 || uses_of(node) > kMaxValues || !are_apart(node, length)) return kNowhere;
  if (is_open(kLists) && !fits_lists(node, length)) close(kLists);
  return kLists;
}

/// Into the group in that slot, which the first node opens.
void Partition::add_by_hand(size_t open, Ref<engine::Op> op) {
  Open& to = open_[open];
  if (!is_open(open)) open_group(open);
  to.group->by_hand = true;
  Mapping whole;
  whole.parameter = true;  // (nothing else joins: how it is accessed does not matter)
  Member member;
  member.node = Ref<run::Node>::adopt(static_cast<run::Node*>(op.detach()));
  for (const run::TensorArg& arg : member.node->tensors) {
    member.operands.push_back(arg.value ? add_value(open, *arg.value, whole) : kNone);
    if (arg.value && arg.written)
      to.group->vars[to.group->values[member.operands.back()].var].written = true;
  }
  for (const run::ValueRef& output : member.node->outputs) {
    member.results.push_back(output ? add_value(open, *output, whole) : kNone);
    if (!output) continue;
    GroupVar& var = to.group->vars[to.group->values[member.results.back()].var];
    var.fresh = var.written = var.overwrites = true;
  }
  to.group->members.push_back(std::move(member));
}

/// Where the tensors of the chain's last node stand in their lists.
void Partition::note_places(const run::Node& node, int64_t length) {
  open_[kLists].length = length;
  for (size_t i = 0; i < node.tensors.size(); ++i)
    open_[kLists].uses[slot_in(kLists, node.tensors[i].value->var())].place =
        static_cast<int64_t>(i) % length;
  for (size_t i = 0; i < node.outputs.size(); ++i)
    open_[kLists].uses[slot_in(kLists, node.outputs[i]->var())].place =
        static_cast<int64_t>(i) % length;
}

void Partition::join(size_t open, const Candidate& candidate, Ref<engine::Op> op) {
  Open& to = open_[open];
  if (!is_open(open)) {
    open_group(open);
    to.group->numel = candidate.iteration.numel;
  }
  to.used = ++clock_;
  to.late_bytes += late_bytes(open, candidate);
  Group& group = *to.group;
  if (candidate.iteration.numel >= kManyElements) to.component = component_of(candidate);
  const bool by_row = is_done_by_row(open, candidate);
  if (candidate.row) group.row = candidate.row;
  if (!by_row && candidate.needs_shape(group.row)) group.shape = candidate.iteration.shape;
  const auto mapped = [&](const Mapping& mapping) {
    return by_row ? once_a_row(mapping, group) : mapping;
  };
  const bool first_use = candidate.in_place && slot_in(open, candidate.results[0]->var()) < 0;
  Member member;
  for (size_t i = 0; i < candidate.mappings.size(); ++i) {
    const run::ValueRef& value = candidate.node->tensors[i].value;
    member.operands.push_back(value ? add_value(open, *value, mapped(candidate.mappings[i]))
                                    : kNone);
  }
  group.checked |= candidate.checked;
  group.in_shares |= candidate.in_shares;
  if (candidate.in_place) {
    member.results.push_back(member.operands[0]);
    GroupVar& var = group.vars[group.values[member.results[0]].var];
    group.writes_old |= !var.fresh;
    const engine::Access& claim = candidate.node->claims()[0];
    var.overwrites |= first_use && claim.overwrites;
    var.written = true;
  } else {
    for (size_t i = 0; i < candidate.results.size(); ++i) {
      if (!candidate.results[i]) {
        member.results.push_back(kNone);
        continue;
      }
      member.results.push_back(
          add_value(open, *candidate.results[i], mapped(candidate.result_mappings[i])));
      GroupVar& var = group.vars[group.values[member.results[i]].var];
      var.fresh = var.written = var.overwrites = true;
    }
  }
  member.node = Ref<run::Node>::adopt(static_cast<run::Node*>(op.detach()));
  group.members.push_back(std::move(member));
}

void Partition::close(size_t open) {
  const Ref<Group> group = std::exchange(open_[open].group, nullptr);
  open_now_ &= ~(uint32_t{1} << open);
  for (const GroupVar& var : group->vars) state(*var.var).used_by &= ~(uint32_t{1} << open);
  if (group->members.size() == 1) return out_.push_back(std::move(group->members[0].node));
  group->queue = group->members[0].node->queue;
  if (!only_plans_) spared_ += group->claim();
  out_.push_back(group);
}

Partition::Batch Partition::run(Batch nodes) { return divide(std::move(nodes), false); }

Partition::Batch Partition::plan(const Batch& nodes) { return divide(nodes, true); }

Partition::Batch Partition::divide(Batch nodes, bool only_plans) {
  only_plans_ = only_plans;
  for (Open& left : open_) left.group = nullptr;  // by a run that has thrown
  open_now_ = 0;
  out_.clear();
  out_.reserve(nodes.size());
  spared_ = 0;
  describe_all(nodes);
  for (at_ = 0; at_ < nodes.size(); ++at_) {
    const size_t i = at_;
    Ref<engine::Op>& op = nodes[i];
    auto& node = static_cast<run::Node&>(*op);
    const Candidate& candidate = candidates_[i];
    const bool ends_pair = is_open(kPair) && are_pair(*open_[kPair].group->members[0].node, node);
    size_t place = special_place(node);
    const bool special = place != kNowhere;
    if (!special && candidate.node) place = place_for(candidate);
    close_those_in_conflict(node, place);
    if (special)
      add_by_hand(place, std::move(op));
    else if (place != kNowhere)
      join(place, candidate, std::move(op));
    else
      out_.push_back(std::move(op));
    note_writes(node);  // (what it writes itself does not come late to its group)
    if (place == kLists) note_places(node, lists_of(node));
    if (ends_pair) close(kPair);
  }
  while (open_now_ != 0) {  // oldest first: which comes first does not matter, but must not vary
    auto oldest = static_cast<size_t>(std::countr_zero(open_now_));
    for (size_t k = oldest; k < kSlots; ++k)
      if (is_open(k) && open_[k].serial < open_[oldest].serial) oldest = k;
    close(oldest);
  }
  return std::move(out_);
}

}  // namespace lazyeng::fuse
