// csrc/fuse/step_plan.cpp: the words of a window, and groups made anew from a plan.
#include "csrc/fuse/step_plan.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#include "csrc/engine/prefetch.h"
#include "csrc/fuse/graphs/planned_segments.h"
#include "csrc/fuse/graphs/step_graph.h"
#include "csrc/fuse/op_table.h"
#include "csrc/fuse/planned_programs.h"

namespace lazyeng::fuse {
namespace {

constexpr size_t kSeen = 1024;             // places for hashes of windows seen once
constexpr size_t kRoom = size_t{6} << 20;  // for all plans, in bytes
constexpr size_t kMaxOffsets = 256;        // in a var: they are looked for one by one

std::atomic<uint64_t> replayed{0};

uint64_t bits_of_number(const c10::IValue& number) {
  if (number.isDouble()) return std::bit_cast<uint64_t>(number.toDouble());
  if (number.isInt()) return static_cast<uint64_t>(number.toInt());
  return number.isBool() && number.toBool();
}

bool divides(const OpRule& rule) {
  return rule.form == Form::floor_divide || rule.form == Form::divide_rounded ||
         rule.opcode == Opcode::fmod || rule.opcode == Opcode::remainder;
}

/// A Python number among the tensors, as bits/bits.cpp asks a divisor for its value.
uint64_t bits_of_tensor(const at::Tensor& number) {
  uint64_t bits = 0;
  const size_t size = std::min<size_t>(sizeof bits, number.numel() == 1 ? number.itemsize() : 0);
  std::memcpy(&bits, size ? number.const_data_ptr() : &bits, size);
  return bits;
}

/// The numbers whose value decides about bits or steps (csrc/fuse/bits/bits.cpp, plan.cpp); all
/// others are read when the program runs.
void add_deciding_numbers(const run::Node& node, const OpRule& rule, Key& words) {
  if (rule.form == Form::binary_scaled || rule.form == Form::reversed) {
    const c10::IValue& alpha = node.args.back();
    words.push_back(alpha.isScalar() && alpha.toScalar().equal(1));
    return;
  }
  if (rule.form != Form::power && !is_variance(rule.form) && rule.opcode != Opcode::lerp &&
      !divides(rule))
    return;
  for (const c10::IValue& arg : node.args)
    if (arg.isScalar()) words.push_back(bits_of_number(arg));
  if (!divides(rule)) return;
  for (const run::TensorArg& arg : node.tensors)
    if (!arg.value && arg.raw.defined() && arg.raw.device().is_cpu())
      words.push_back(bits_of_tensor(arg.raw));
}

/// Where a value of a group is to be found: among a node's arguments, or its outputs.
struct Source {
  uint32_t node;
  uint16_t index;
  bool output;

  run::Value* in(const StepPlans::Batch& nodes) const {
    const auto& at = static_cast<const run::Node&>(*nodes[node]);
    return (output ? at.outputs[index] : at.tensors[index].value).get();
  }
};

using NodePlaces = std::unordered_map<const engine::Op*, uint32_t>;

NodePlaces places_of(const StepPlans::Batch& nodes) {
  NodePlaces places;
  for (size_t i = 0; i < nodes.size(); ++i) places.emplace(nodes[i].get(), i);
  return places;
}

template <class T>
size_t bytes_of(const std::vector<T>& vector) {
  return vector.capacity() * sizeof(T);
}

/// A group, but for what differs from step to step.
class PlannedGroup {
 public:
  PlannedGroup(const Group& group, const NodePlaces& places);

  /// The group for these nodes, without them. Null: what was one value is several now.
  Ref<Group> bind(const StepPlans::Batch& nodes) const;
  size_t bytes() const {
    return sizeof *this + sizeof *programs_ + bytes_of(members_) + bytes_of(values_) +
           bytes_of(sources_) + bytes_of(vars_);
  }
  void move_nodes(StepPlans::Batch& nodes, Group& group) const;

 private:
  struct MemberPlan {
    uint32_t node;  ///< its place in the window
    c10::SmallVector<int16_t, 4> operands;
    c10::SmallVector<int16_t, 1> results;
  };
  void note_sources(const MemberPlan& member, const run::Node& node);

  GroupTraits traits_;
  std::vector<MemberPlan> members_;
  std::vector<GroupValue> values_;  // each without its value
  std::vector<Source> sources_;     // where that stands
  std::vector<GroupVar> vars_;      // each without its var
  std::shared_ptr<PlannedPrograms> programs_ = std::make_shared<PlannedPrograms>();
};

PlannedGroup::PlannedGroup(const Group& group, const NodePlaces& places)
    : traits_(group), values_(group.values), sources_(group.values.size()), vars_(group.vars) {
  for (const Member& member : group.members) {
    members_.push_back({places.at(member.node.get()), member.operands, member.results});
    note_sources(members_.back(), *member.node);
  }
  for (GroupValue& value : values_) value.value = nullptr;
  for (GroupVar& var : vars_) var.var = nullptr;
}

void PlannedGroup::note_sources(const MemberPlan& member, const run::Node& node) {
  for (size_t i = 0; i < member.operands.size(); ++i)
    if (member.operands[i] != kNone)
      sources_[member.operands[i]] = {member.node, static_cast<uint16_t>(i), false};
  // (The result of an op that writes its argument is that operand.)
  for (size_t i = 0; i < std::min(member.results.size(), node.outputs.size()); ++i)
    if (member.results[i] != kNone && node.outputs[i])
      sources_[member.results[i]] = {member.node, static_cast<uint16_t>(i), true};
}

Ref<Group> PlannedGroup::bind(const StepPlans::Batch& nodes) const {
  auto group = make_ref<Group>();
  static_cast<GroupTraits&>(*group) = traits_;
  group->values = values_;
  group->vars = vars_;
  for (size_t v = 0; v < values_.size(); ++v) {
    run::Value* const value = sources_[v].in(nodes);
    group->values[v].value = value;
    group->vars[values_[v].var].var = &value->var();
  }
  for (const MemberPlan& member : members_) {
    const auto& node = static_cast<const run::Node&>(*nodes[member.node]);
    for (size_t i = 0; i < member.operands.size(); ++i)
      if (member.operands[i] != kNone &&
          node.tensors[i].value.get() != group->values[member.operands[i]].value)
        return nullptr;
  }
  group->programs = programs_;
  return group;
}

void PlannedGroup::move_nodes(StepPlans::Batch& nodes, Group& group) const {
  group.members.reserve(members_.size());
  group.queue = nodes[members_[0].node]->queue;
  for (const MemberPlan& member : members_) {
    auto node = Ref<run::Node>::adopt(static_cast<run::Node*>(nodes[member.node].detach()));
    group.members.push_back({std::move(node), member.operands, member.results});
  }
}

}  // namespace

/// A window that was partitioned.
class StepPlan {
 public:
  StepPlan(Key words, std::vector<run::GeometryRef> looks, const StepPlans::Batch& ops,
           const NodePlaces& places);

  bool is_of(const Key& words) const { return words_ == words; }
  /// Without what it shares with others (looks, programs) or has later (CUDA graphs).
  size_t bytes() const;

  /// Moves the nodes to what is to be pushed. False: not these; nothing has changed.
  bool replay(StepPlans::Batch& nodes, StepPlans::Batch& ops, uint64_t& spared) const;
  StepPlans::Batch in_segments(StepPlans::Batch ops) { return segments_.divide(std::move(ops)); }

 private:
  const Key words_;
  const std::vector<run::GeometryRef> looks_;  // the words hold their addresses
  /// What is pushed: places of nodes, and below zero those of groups, from -1 on.
  std::vector<int32_t> order_;
  std::vector<PlannedGroup> groups_;
  PlannedSegments segments_;
};

StepPlan::StepPlan(Key words, std::vector<run::GeometryRef> looks, const StepPlans::Batch& ops,
                   const NodePlaces& places)
    : words_(std::move(words)), looks_(std::move(looks)) {
  for (const Ref<engine::Op>& op : ops) {
    const auto node = places.find(op.get());
    if (node != places.end()) {
      order_.push_back(static_cast<int32_t>(node->second));
    } else {
      groups_.emplace_back(static_cast<const Group&>(*op), places);
      order_.push_back(-static_cast<int32_t>(groups_.size()));
    }
  }
}

size_t StepPlan::bytes() const {
  size_t bytes = sizeof *this + bytes_of(words_) + bytes_of(looks_) + bytes_of(order_);
  for (const PlannedGroup& group : groups_) bytes += group.bytes();
  return bytes;
}

bool StepPlan::replay(StepPlans::Batch& nodes, StepPlans::Batch& ops, uint64_t& spared) const {
  std::vector<Ref<Group>> groups;
  groups.reserve(groups_.size());
  for (const PlannedGroup& planned : groups_) {
    groups.push_back(planned.bind(nodes));
    if (!groups.back()) return false;
  }
  ops.reserve(order_.size());
  for (const int32_t next : order_) {
    if (next >= 0) {
      ops.push_back(std::move(nodes[next]));
      continue;
    }
    Ref<Group>& group = groups[-next - 1];
    groups_[-next - 1].move_nodes(nodes, *group);
    spared += group->claim();
    ops.push_back(std::move(group));
  }
  return true;
}

StepPlans::StepPlans(Partition& partition) : partition_(partition), seen_(kSeen), plans_(kRoom) {}
StepPlans::~StepPlans() = default;

uint64_t StepPlans::place_of(run::StorageVar& var) {
  if (var.partition_index >= vars_.size() || vars_[var.partition_index].var != &var) {
    var.partition_index = static_cast<uint32_t>(vars_.size());
    vars_.push_back({&var, {}});
  }
  return var.partition_index;
}

/// Which of the foreign kernels that is; 0: none.
uint64_t StepPlans::place_of_kernel(uint64_t number) {
  if (number == 0) return 0;
  const auto found = std::ranges::find(kernels_, number);
  if (found == kernels_.end()) kernels_.push_back(number);
  return static_cast<uint64_t>(found - kernels_.begin()) + 1;
}

/// Which of the offsets in its var that is. None: there are too many.
std::optional<uint64_t> StepPlans::place_of_offset(const run::Value& value) {
  auto& offsets = vars_[place_of(value.var())].offsets;
  const int64_t offset = value.geometry().offset();
  const auto found = std::ranges::find(offsets, offset);
  if (found == offsets.end()) {
    if (offsets.size() >= kMaxOffsets) return std::nullopt;
    offsets.push_back(offset);
    return offsets.size() - 1;
  }
  return static_cast<uint64_t>(found - offsets.begin());
}

/// False: what it is cannot be told from words.
bool StepPlans::add_look(const run::Value& value) {
  // (A CUDA graph, which a plan keeps, has addresses in it.)
  const run::Geometry& look = value.geometry();
  const bool moves = look.device().is_cpu();
  const std::optional<uint64_t> offset = moves ? place_of_offset(value) : 0;
  if (!offset) return false;
  looks_.emplace_back(moves ? &look.at_origin() : &look);
  words_.insert(words_.end(),
                {reinterpret_cast<uint64_t>(looks_.back().get()), place_of(value.var()), *offset});
  return true;
}

/// False: what it is cannot be told from words.
bool StepPlans::add_node(const run::Node& node) {
  const OpRule* rule = rule_of(node.info);
  const bool may_join = rule || !node.device.is_cpu();
  if (may_join && node.plan == 0) return false;
  words_.push_back(may_join ? node.plan : reinterpret_cast<uint64_t>(&node.info));
  words_.push_back(static_cast<uint64_t>(node.queue) << 48 |
                   static_cast<uint64_t>(static_cast<uint8_t>(node.device.type())) << 40 |
                   static_cast<uint64_t>(static_cast<uint8_t>(node.device.index())) << 32 |
                   static_cast<uint64_t>(node.settings.num_threads) << 1 |
                   static_cast<uint64_t>(node.settings.flush_denormal));
  if (!node.device.is_cpu()) words_.push_back(static_cast<uint64_t>(node.stream_id));
  if (may_join) {
    for (const run::TensorArg& arg : node.tensors) {
      if (!arg.value)
        words_.push_back(0);
      else if (!add_look(*arg.value))
        return false;
    }
    for (const run::ValueRef& output : node.outputs)
      if (output && !place_of_offset(*output)) return false;
  }
  words_.push_back(node.claims().size() << 32 | place_of_kernel(node.behind));
  for (const engine::Access& claim : node.claims())
    words_.push_back(place_of(static_cast<run::StorageVar&>(*claim.var)) << 2 |
                     static_cast<uint64_t>(claim.write) << 1 |
                     static_cast<uint64_t>(claim.overwrites));
  if (rule) add_deciding_numbers(node, *rule, words_);
  return true;
}

bool StepPlans::describe(const Batch& nodes) {
  words_.clear();
  looks_.clear();
  vars_.clear();
  kernels_.clear();
  constexpr size_t kAhead = 4;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (i + kAhead < nodes.size()) engine::prefetch(nodes[i + kAhead].get(), sizeof(run::Node));
    if (!add_node(static_cast<const run::Node&>(*nodes[i]))) return false;
  }
  return true;
}

StepPlan* StepPlans::find(uint64_t hash) {
  StepPlan* const plan = plans_.find(hash);
  return plan && plan->is_of(words_) ? plan : nullptr;
}

/// How many windows came since it did. None: it comes for the first time, as far as is remembered.
std::optional<uint64_t> StepPlans::asked_since(uint64_t hash) {
  Seen& place = seen_[hash % kSeen];
  const Seen before = std::exchange(place, {hash, plans_.asked()});
  if (before.hash != hash) return std::nullopt;
  return place.asked - before.asked;
}

StepPlans::Batch StepPlans::partition(Batch nodes) {
  Batch ops = partition_.run(std::move(nodes));
  spared_ = partition_.spared();
  return ops;
}

StepPlans::Batch StepPlans::run(Batch nodes) {
  spared_ = 0;
  if (const uint64_t now = rules_version(); std::exchange(rules_, now) != now) plans_.clear();
  if (!describe(nodes)) return partition(std::move(nodes));
  const uint64_t hash = HashKey()(words_);
  Batch ops;
  if (StepPlan* const plan = find(hash)) {
    const size_t count = nodes.size();
    if (!plan->replay(nodes, ops, spared_)) return partition(std::move(nodes));
    replayed.fetch_add(count, std::memory_order_relaxed);
    return cuda_graphs() ? plan->in_segments(std::move(ops)) : std::move(ops);
  }
  const std::optional<uint64_t> after = asked_since(hash);
  if (!after) return partition(std::move(nodes));
  const NodePlaces places = places_of(nodes);
  ops = partition(std::move(nodes));
  auto plan = std::make_unique<StepPlan>(words_, std::move(looks_), ops, places);
  const size_t bytes = plan->bytes();
  plans_.keep(hash, bytes, std::move(plan), *after);
  return ops;
}

uint64_t replayed_nodes() { return replayed.load(std::memory_order_relaxed); }

}  // namespace lazyeng::fuse
