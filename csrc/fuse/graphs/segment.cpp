// csrc/fuse/graphs/segment.cpp: claims of several ops, and running them one by one.
#include "csrc/fuse/graphs/segment.h"

#include <algorithm>

#include "csrc/fuse/graphs/step_graph.h"
#include "csrc/run/traces/torch_profiler.h"

namespace lazyeng::fuse {
Group* as_group(engine::Op& op) { return dynamic_cast<Group*>(&op); }

size_t nodes_in(engine::Op& op) {
  const Group* const group = as_group(op);
  return group ? group->members.size() : 1;
}

Segment::Segment(Batch ops, std::shared_ptr<StepGraph> graph)
    : ops_(std::move(ops)), graph_(std::move(graph)) {
  handles_failures = true;
  weight = 0;
  queue = ops_[0]->queue;
  for (size_t i = 0; i < ops_.size(); ++i) {
    engine::Op& op = *ops_[i];
    weight += op.weight;
    cost_bytes += op.cost_bytes;
    for (const engine::Access& claim : op.claims()) {
      if (claim.write)
        add_write(claim.var, claim.overwrites);
      else
        add_read(claim.var);
    }
    op.drop_claims();
    if (const Group* const group = as_group(op))
      for (const Member& member : group->members) nodes_.push_back(member.node.get());
    else
      nodes_.push_back(static_cast<run::Node*>(&op));
    op_of_.resize(nodes_.size(), static_cast<uint32_t>(i));
  }
}

engine::FailurePtr Segment::run() noexcept {
  const run::SeenByTorchProfiler seen(*this);
  if (!graph_->run(*this)) run_ops();
  return nullptr;
}

void Segment::run_ops() noexcept {
  size_t first = 0;
  for (size_t i = 0; i < ops_.size(); ++i) {
    size_t end = first;
    while (end < nodes_.size() && op_of_[end] == i) ++end;
    if (Group* const group = as_group(*ops_[i]))
      run_group(*group);
    else
      outcomes_.run(static_cast<run::Node&>(*ops_[i]));
    let_go_of(i, first, end);
    first = end;
  }
}

/// Memory of what nobody holds any more goes now, as the segment's own claims would keep it. (That
/// of plain tensors is theirs, and its var may be asked for again.)
void Segment::let_go_of(size_t op, size_t first_node, size_t end_node) {
  c10::SmallVector<run::StorageVar*, 16> vars;  // (kept by the claims)
  for (size_t i = first_node; i < end_node; ++i) {
    for (const run::TensorArg& arg : nodes_[i]->tensors)
      if (arg.value) vars.push_back(&arg.value->var());
    for (const run::ValueRef& value : nodes_[i]->outputs)
      if (value) vars.push_back(&value->var());
  }
  ops_[op] = nullptr;
  for (run::StorageVar* const var : vars)
    if (var->use_count() == 1 && !var->exposed()) var->drop_memory();
}

/// A group looks at the vars for failures; of what an op of this segment has failed they know only
/// when all of it is over.
bool Segment::met_failure(const Group& group) const {
  return std::ranges::any_of(group.vars,
                             [this](const GroupVar& var) { return outcomes_.has(*var.var); });
}

void Segment::run_group(Group& group) {
  if (met_failure(group)) {
    for (const Member& member : group.members) outcomes_.run(*member.node);
    return;
  }
  group.run();
  for (const GroupVar& var : group.vars) {
    if (!var.fresh && !var.written) continue;
    const engine::FailurePtr& failure = group.failure_of(*var.var, nullptr);
    if (failure || var.var->failure()) outcomes_.add(*var.var, failure);
  }
}

void Segment::fail(run::Node& node, const std::exception_ptr& error) noexcept {
  outcomes_.fail(node, error);
}

void Segment::report_changed_inputs() noexcept {
  for (run::Node* const node : nodes_) outcomes_.report_changed_inputs(*node);
}

const engine::FailurePtr& Segment::failure_of(const engine::Var& var,
                                              const engine::FailurePtr& failure) const noexcept {
  return outcomes_.failure_of(var, failure);
}

}  // namespace lazyeng::fuse
