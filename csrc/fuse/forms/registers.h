// csrc/fuse/forms/registers.h: the registers of a program in the making: how the arguments of
// members get into them, and which one holds what a member has made.
//
// One Registers serves one lowering, member after member, on one thread.
#pragma once

#include "csrc/fuse/arguments.h"
#include "csrc/fuse/iteration.h"
#include "csrc/fuse/plan.h"

namespace lazyeng::fuse {

struct Operand {
  RegisterId reg;
  c10::ScalarType dtype;
};

/// What a register holds for a tensor of the dtype; throws Unfit for a dtype that programs do not
/// know.
Type register_type(c10::ScalarType dtype);
/// The same, in memory.
Type memory_type(c10::ScalarType dtype);

struct Extent;

class Registers {
 public:
  explicit Registers(const Group& group);

  /// What follows is done for this member, which goes over that.
  void begin(const Member& member, const Extent& extent);
  const Arguments& args() const { return args_; }
  bool has_rows() const { return group_.row != 0; }

  /// The argument in `dtype`. `exact`: a single number that torch takes in float32 where the
  /// tensors are of a narrow dtype.
  RegisterId as(size_t arg, c10::ScalarType dtype, bool exact = false);
  /// The number, or the item() of a tensor of one element, which may not fit.
  RegisterId item(size_t arg, c10::ScalarType dtype);
  RegisterId constant(double value, c10::ScalarType as);
  RegisterId number(size_t arg, c10::ScalarType as, bool negate = false, bool no_nan = false,
                    double plus = 0);
  /// 1 divided by the number, in double.
  RegisterId inverse_number(size_t arg, c10::ScalarType as);

  /// A step in the dtype, whose result is rounded to it.
  Operand step(Opcode opcode, c10::ScalarType dtype, std::initializer_list<RegisterId> in);
  /// The same of a function: torch's own, where no other bits are allowed.
  Operand function(Opcode opcode, c10::ScalarType dtype, RegisterId in);
  RegisterId convert(Operand from, c10::ScalarType to);
  /// To the nearest value that the dtype can hold, if it is narrower than its register.
  RegisterId round_to(RegisterId reg, c10::ScalarType dtype);
  ProgramBuilder& builder() { return builder_; }

  /// The member's result, or one of several, is in the register from now on.
  void set_result(RegisterId reg, Rate rate, size_t index = 0);
  /// That of the member's elements: a member may do its work once for each row.
  Rate rate() const { return rate_; }
  /// The member's result is the register folded over all tiles; nobody in the group reads it.
  /// `sum_of`: as ProgramBuilder::reduce.
  void set_fold(RegisterId reg, Fold fold, double divisor, const Places& places, size_t index = 0,
                std::optional<Type> sum_of = {});
  /// The member's two results are such a sum and its weight; nobody in the group reads them.
  /// `targets`: its second argument.
  void set_picked_sum(const PickedSum& sum, RegisterId targets);

  /// The plan: what is needed goes to memory. `needed` has one flag a var.
  GroupPlan finish(const std::vector<bool>& needed) &&;

 private:
  struct Loaded {
    int16_t value;
    TensorAccess access;
    RegisterId reg;
  };
  /// What the program has written to a var.
  struct Written {
    bool written = false;
    RegisterId reg = 0;
    int16_t value = 0;
    TensorAccess access;
    bool folded = false;
    std::optional<Type> sum_of;
    Fold fold = Fold::sum;
    double divisor = 1;
    Places places;
    std::optional<PickedSum> picked;
    RegisterId targets = 0;
    bool total_weight = false;
  };

  RegisterId add_parameter(ParameterSource source, c10::ScalarType as);
  RegisterId single(int tensor, c10::ScalarType as);
  RegisterId load(int16_t value, int operand);
  TensorAccess access(int16_t value, int operand) const;
  bool is_overwritten(int16_t value) const;
  Rate rate_over(const Dims& strides) const;
  Written& result_var(size_t index);
  void store(size_t var);

  const Group& group_;
  ProgramBuilder builder_;
  GroupPlan plan_;
  Arguments args_;
  Iteration iteration_;           // of the member at hand
  Rate rate_ = Rate::element;     // of the same
  bool refuses_ = false;          // it: what torch's loops disagree on
  std::vector<Written> written_;  // of each var
  std::vector<Loaded> loaded_;
};

}  // namespace lazyeng::fuse
