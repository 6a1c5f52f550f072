// csrc/fuse/graphs/outcomes.h: what became of nodes that one op of the engine runs one by one.
//
// The engine settles the vars of an op when all of it is over. Until then the failure of a node is
// known here alone, and keeps those behind it from running as it would if each were an op.
//
// Of one op; used by the engine thread that runs it.
#pragma once

#include <utility>
#include <vector>

#include "csrc/run/node.h"

namespace lazyeng::fuse {

class Outcomes {
 public:
  bool empty() const { return found_.empty(); }
  bool has(const engine::Var& var) const { return find(var) != nullptr; }
  void add(const engine::Var& var, engine::FailurePtr failure) {
    found_.emplace_back(&var, std::move(failure));
  }

  /// Runs the node, unless it reads what has failed.
  void run(run::Node& node);
  /// What keeps a node from running, as DependencyTracker::failed_input.
  engine::FailurePtr failed_input(const run::Node& node) const;
  /// The node is over: its versions are ready, or carry the failure.
  void settle(run::Node& node, const engine::FailurePtr& failure);
  /// The same for one that was launched, and is not known to have gone well.
  void fail(run::Node& node, const std::exception_ptr& error);
  /// Of the plain tensors that the node has read, one was changed meanwhile, or has failed: it is
  /// over once more, with that.
  void report_changed_inputs(run::Node& node);
  /// Of the newest version, or `otherwise` if no node has made one.
  const engine::FailurePtr& failure_of(const engine::Var& var,
                                       const engine::FailurePtr& otherwise) const noexcept;

 private:
  const engine::FailurePtr* find(const engine::Var& var) const noexcept;
  engine::FailurePtr current_failure(const run::StorageVar& var) const;

  std::vector<std::pair<const engine::Var*, engine::FailurePtr>> found_;  // the newest last
};

}  // namespace lazyeng::fuse
