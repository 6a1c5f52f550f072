// csrc/fuse/graphs/segment.h: ops of one window that are pushed as one, so that they may become a
// graph.
//
// On its own it is what its ops are, one after another: each with its own outcome, and what nobody
// holds any more gets no longer life than it would have had. csrc/fuse/graphs/step_graph.h replaces
// that.
//
// Built under the lock of pushes, then run by one engine thread.
#pragma once

#include <vector>

#include "csrc/fuse/group.h"

namespace lazyeng::fuse {

class StepGraph;

class Segment final : public engine::Op {
 public:
  using Batch = std::vector<Ref<engine::Op>>;

  /// Of nodes and groups that claim what they use; the claims become the segment's.
  Segment(Batch ops, std::shared_ptr<StepGraph> graph);

  engine::FailurePtr run() noexcept override;
  const engine::FailurePtr& failure_of(const engine::Var& var,
                                       const engine::FailurePtr&) const noexcept override;

  /// One by one, in their order.
  void run_ops() noexcept;
  /// The node is over: its versions carry the error, or the failure of what it reads.
  void fail(run::Node& node, const std::exception_ptr& error) noexcept;
  /// Plain tensors that were changed while the graph read them, as of Node::execute.
  void report_changed_inputs() noexcept;

  const Batch& ops() const { return ops_; }
  /// Of all ops, in that order.
  const std::vector<run::Node*>& nodes() const { return nodes_; }
  /// f(value, op) for each use of a tensor, `value` being the Ref that an op holds.
  template <class F>
  void for_each_value(const F& f) {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      for (run::TensorArg& arg : nodes_[i]->tensors)
        if (arg.value) f(arg.value, op_of_[i]);
      for (run::ValueRef& value : nodes_[i]->outputs)
        if (value) f(value, op_of_[i]);
    }
  }

 private:
  bool met_failure(const Group& group) const;
  void run_group(Group& group);
  void let_go_of(size_t op, size_t first_node, size_t end_node);

  Batch ops_;
  std::vector<run::Node*> nodes_;
  std::vector<uint32_t> op_of_;  // of each node, its op
  const std::shared_ptr<StepGraph> graph_;
  Outcomes outcomes_;
};

/// The op as a group, or null: it is a node.
Group* as_group(engine::Op& op);
/// One, or the members of a group.
size_t nodes_in(engine::Op& op);

}  // namespace lazyeng::fuse
