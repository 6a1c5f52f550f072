// csrc/fuse/plan.h: the tile program of a group, and where its tensors and numbers come from.
//
// Plans are found by hash in a table. The key is what decides the program: the ops, the looks of
// their tensors, which tensors are the same, which results are needed, and arguments that are not
// numbers. Numbers are read when the program runs.
#pragma once

#include <memory>

#include "csrc/fuse/group.h"

namespace lazyeng::fuse {

/// A number that a program takes.
struct ParameterSource {
  enum class Kind : uint8_t {
    constant,
    number,    ///< a tensor argument without a value: a Python number or a copy of a tensor
    value,     ///< a tensor of one element
    argument,  ///< a Scalar
  };
  Kind kind = Kind::constant;
  uint16_t member = 0;
  uint16_t index = 0;                    ///< of the tensor argument, the value or the argument
  double constant = 0;                   ///< of an argument: what is added to it
  c10::ScalarType as = c10::kFloat;      ///< rounded to it
  c10::ScalarType stored = c10::kFloat;  ///< what memory holds, of a value
  bool negate = false;
  bool inverse = false;  ///< 1 / number
  bool no_nan = false;   ///< the op treats NaN specially: not for a program
  bool item = false;     ///< of a tensor: taken by the op as item() gives it
};

struct TensorSource {
  uint16_t value;
  bool fresh;  ///< memory is to be made for it
};

class PlanKernels;

struct GroupPlan {
  bool possible = false;
  Program program;
  std::vector<ParameterSource> parameters;
  std::vector<TensorSource> tensors;  ///< of each of the program's
  uint64_t bytes_saved = 0;
  /// What runs it on devices; null on the CPU.
  std::shared_ptr<PlanKernels> kernels;
  mutable bool doubted = false;  ///< it was not certain of its bits once; by std::atomic_ref
};

using GroupPlanRef = std::shared_ptr<const GroupPlan>;
/// The plan of a group alike, or a new one. `needed`: whether each var's memory must be written.
GroupPlanRef find_plan(const Group& group, const std::vector<bool>& needed);

/// Makes the plan (csrc/fuse/lowering.cpp).
GroupPlan lower(const Group& group, const std::vector<bool>& needed);

size_t plan_count();

}  // namespace lazyeng::fuse
