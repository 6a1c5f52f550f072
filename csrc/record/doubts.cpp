// csrc/record/doubts.cpp: one Doubt for each kind of call.
#include "csrc/record/doubts.h"

#include "csrc/record/kind_table.h"

namespace lazyeng::record {

bool has_usual_strides(const run::Geometry& look) {
  int64_t usual = 1;
  for (size_t d = look.sizes().size(); d-- > 0; usual *= look.sizes()[d])
    if (look.sizes()[d] == 1 || look.strides()[d] != usual) return false;
  return true;
}

run::Doubt& doubt_of(const Call& call) {
  PlanKey kind;
  if (!make_kind_key(call, kind)) return call.info.doubt;
  for (const run::GeometryRef& look : call.looks) kind.push_back(look && !has_usual_strides(*look));
  static auto* const doubts = new KindTable<run::Doubt*>;
  if (const auto known = doubts->find(kind)) return **known;
  // (Two threads at once make two: the second one counts from now on.)
  auto* const fresh = new run::Doubt;
  doubts->note(kind, fresh);
  return *fresh;
}

}  // namespace lazyeng::record
