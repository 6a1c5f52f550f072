// csrc/fuse/arguments.h: what lowering asks of the arguments of one member of a group.
//
// Positions are those of the schema.
#pragma once

#include "csrc/fuse/group.h"
#include "csrc/fuse/result_type.h"

namespace lazyeng::fuse {

/// Thrown by a form that the arguments do not fit: the group runs unfused.
struct Unfit {};

class Arguments {
 public:
  Arguments(const Group& group, const Member& member) : group_(&group), member_(&member) {}

  const Member& member() const { return *member_; }
  const run::Node& node() const { return *member_->node; }
  const run::Geometry& look_of(int16_t value) const {
    return group_->values[static_cast<size_t>(value)].value->geometry();
  }
  const run::Geometry& result_look() const { return look_of(member_->results[0]); }

  /// Which tensor argument stands there; -1: none does.
  int tensor_at(size_t arg) const;
  bool has_number(size_t arg) const {
    return arg < node().args.size() && node().args[arg].isScalar();
  }
  /// The value of the tensor argument; kNone for a number and an undefined tensor.
  int16_t value_of(int tensor) const { return member_->operands[static_cast<size_t>(tensor)]; }
  /// False for an undefined tensor, and for None.
  bool is_given(size_t arg) const;
  /// A number, or a tensor of one element.
  bool is_single(size_t arg) const;
  c10::ScalarType dtype_at(size_t arg) const;

  /// Takes part in promotion as the argument does: a tensor, or a number.
  void promote(ResultType& type, size_t arg) const;
  c10::ScalarType common_dtype(std::initializer_list<size_t> args) const;
  /// The dtype that a function of `common` computes in: integers become the result's.
  c10::ScalarType float_dtype(c10::ScalarType common) const;

 private:
  const Group* group_;
  const Member* member_;
};

}  // namespace lazyeng::fuse
