// csrc/record/metadata/doubts.cpp: the kind of a call.
#include "csrc/record/metadata/doubts.h"

#include <algorithm>

#include "csrc/record/metadata/infer.h"

namespace lazyeng::record {

bool has_usual_strides(const run::Geometry& look) {
  int64_t usual = 1;
  for (size_t d = look.sizes().size(); d-- > 0; usual *= look.sizes()[d])
    if (look.sizes()[d] == 1 || look.strides()[d] != usual) return false;
  return true;
}

run::DoubtedKind doubted_kind(const Call& call) {
  PlanKey kind;
  if (!make_kind_key(call, kind)) kind.assign({reinterpret_cast<uint64_t>(&call.info)});
  for (const run::GeometryRef& look : call.looks) kind.push_back(look && !has_usual_strides(*look));
  return std::max<run::DoubtedKind>(hash_of(kind), 1);
}

}  // namespace lazyeng::record
