// csrc/fuse/lowering.cpp: from the members of a group to the steps of a program.
#include "csrc/fuse/forms/forms.h"

namespace lazyeng::fuse {
namespace {

void lower_member(Registers& r, const Member& member) {
  const OpRule& rule = *rule_of(member.node->info);
  const Extent extent = extent_of(rule, *member.node);
  if (!extent.elements) throw Unfit();
  r.begin(member, extent);
  if (extent.folds) return lower_fold(r, rule, extent);
  if (extent.row) return lower_rows(r, rule, extent);
  const Operand made = lower_pointwise(r, rule);
  const c10::ScalarType dtype = r.args().result_look().dtype();
  // An op that makes a tensor has decided its dtype when it was recorded.
  if (!member.node->info.writes && made.dtype != dtype) throw Unfit();
  r.set_result(r.convert(made, dtype), r.rate());
}

}  // namespace

GroupPlan lower(const Group& group, const std::vector<bool>& needed) {
  try {
    Registers registers(group);
    for (const Member& member : group.members) lower_member(registers, member);
    return std::move(registers).finish(needed);
  } catch (const Unfit&) {
    return {};
  }
}

}  // namespace lazyeng::fuse
