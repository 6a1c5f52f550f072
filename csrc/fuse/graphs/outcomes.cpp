// csrc/fuse/graphs/outcomes.cpp: failures among nodes of one op.
#include "csrc/fuse/graphs/outcomes.h"

#include "csrc/run/device/launch_log.h"

namespace lazyeng::fuse {
const engine::FailurePtr* Outcomes::find(const engine::Var& var) const noexcept {
  for (size_t i = found_.size(); i-- > 0;)
    if (found_[i].first == &var) return &found_[i].second;
  return nullptr;
}

const engine::FailurePtr& Outcomes::failure_of(const engine::Var& var,
                                               const engine::FailurePtr& otherwise) const noexcept {
  const engine::FailurePtr* const found = find(var);
  return found ? *found : otherwise;
}

engine::FailurePtr Outcomes::current_failure(const run::StorageVar& var) const {
  const engine::FailurePtr* const found = find(var);
  return found ? *found : var.failure();
}

engine::FailurePtr Outcomes::failed_input(const run::Node& node) const {
  engine::FailurePtr first;
  for (const run::TensorArg& arg : node.tensors)
    if (arg.value && !arg.overwrites_memory())
      engine::take_first(first, current_failure(arg.value->var()));
  return first;
}

void Outcomes::settle(run::Node& node, const engine::FailurePtr& failure) {
  node.finish(failure);
  for (run::StorageVar* var : node.written_vars)
    if (failure || current_failure(*var)) add(*var, failure);
}

void Outcomes::run(run::Node& node) {
  const engine::FailurePtr cause = failed_input(node);
  engine::FailurePtr failure = cause ? node.skip(cause) : node.run();
  if (!cause && node.asks_again()) failure = node.run();  // (it cannot wait for others)
  settle(node, failure);
}

void Outcomes::fail(run::Node& node, const std::exception_ptr& error) {
  if (const engine::FailurePtr cause = failed_input(node)) return settle(node, node.skip(cause));
  const engine::FailurePtr lost = run::device_failure(node, error);
  settle(node, lost ? lost : node.fail(error));
}

void Outcomes::report_changed_inputs(run::Node& node) {
  engine::FailurePtr failure = failed_input(node);
  if (failure) {
    failure = node.skip(failure);
  } else {
    try {
      node.check_plain_reads();
    } catch (...) {
      failure = node.fail(std::current_exception());
    }
  }
  if (failure) settle(node, failure);
}

}  // namespace lazyeng::fuse
