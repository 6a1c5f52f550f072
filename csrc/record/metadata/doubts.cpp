// csrc/record/metadata/doubts.cpp: the Doubt of each kind of call.
#include "csrc/record/metadata/doubts.h"

#include <array>

#include "csrc/record/metadata/infer.h"

namespace lazyeng::record {

bool has_usual_strides(const run::Geometry& look) {
  int64_t usual = 1;
  for (size_t d = look.sizes().size(); d-- > 0; usual *= look.sizes()[d])
    if (look.sizes()[d] == 1 || look.strides()[d] != usual) return false;
  return true;
}

// A fixed number of them, as kinds are unbounded: numbers are part of them. Two kinds that share
// one are asked for more often than they need be.
run::Doubt& doubt_of(const Call& call) {
  static std::array<run::Doubt, size_t{1} << 14> doubts;
  PlanKey kind;
  if (!make_kind_key(call, kind)) return call.info.doubt;
  for (const run::GeometryRef& look : call.looks) kind.push_back(look && !has_usual_strides(*look));
  return doubts[hash_of(kind) % doubts.size()];
}

}  // namespace lazyeng::record
