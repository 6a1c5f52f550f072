// csrc/fuse/binding.h: the memory and the numbers that one run of a plan works on.
#pragma once

#include "csrc/fuse/plan.h"

namespace lazyeng::fuse {

/// Memory for what a plan makes, and its numbers, ready to run. By the thread that runs the group.
class BoundPlan {
 public:
  /// Throws if there is no memory, or a number does not fit the dtype that it is for.
  BoundPlan(const Group& group, const GroupPlan& plan);

  /// False if a tensor is not where it was recorded to be (no memory, or less), or a number is one
  /// that the op treats specially: nothing may be run.
  bool valid() const { return valid_; }
  /// As run_program.
  bool run(Cores cores) { return run_program(plan_.program, bindings_, cores); }
  /// Gives the group's vars the memory that was made for them.
  void install();

 private:
  void bind_tensors();
  void bind_parameters();
  void write_splat(size_t index, const c10::Scalar& number, const ParameterSource& source);

  const Group& group_;
  const GroupPlan& plan_;
  Bindings bindings_;
  std::vector<c10::Storage> made_;  // of each fresh tensor, in order
  std::vector<char> splat_memory_;
  bool valid_ = true;
};

}  // namespace lazyeng::fuse
