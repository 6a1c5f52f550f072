// csrc/record/metadata/in_place_arguments.cpp: the first checks of the kernels in ATen/native:
// TensorAdvancedIndexing.cpp, DistributionTemplates.h, Embedding.cpp.
#include "csrc/record/metadata/in_place_arguments.h"

#include <ATen/ExpandUtils.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace lazyeng::record {
namespace {

using Geometry = run::Geometry;

bool expands_to(const Geometry& look, const Geometry& self) {
  return at::is_expandable_to(look.sizes(), self.sizes());
}

/// Arguments: self, mask, source. (How many elements the mask chooses is a value.)
bool may_be_scattered(const Call& call) {
  const Geometry &self = *call.looks[0], &mask = *call.looks[1], &source = *call.looks[2];
  return mask.dtype() == c10::kBool && source.dtype() == self.dtype() && expands_to(mask, self);
}

/// Arguments: self, index, source.
bool may_be_put(const Call& call) {
  const Geometry &self = *call.looks[0], &index = *call.looks[1], &source = *call.looks[2];
  return index.dtype() == c10::kLong && source.dtype() == self.dtype() &&
         source.numel() == index.numel() && self.numel() != 0;
}

/// Arguments: self, p.
bool may_be_drawn(const Call& call) {
  const Geometry &self = *call.looks[0], &p = *call.looks[1];
  return c10::isFloatingType(p.dtype()) && expands_to(p, self);
}

/// Arguments: self, indices.
bool may_be_scaled(const Call& call) {
  const Geometry &self = *call.looks[0], &indices = *call.looks[1];
  return self.sizes().size() == 2 &&
         (indices.dtype() == c10::kLong || indices.dtype() == c10::kInt);
}

struct Rule {
  std::string_view base;
  size_t tensors;
  bool (*fits)(const Call& call);
};
constexpr std::array<Rule, 5> kRules = {{{"aten::masked_scatter_", 3, may_be_scattered},
                                         {"aten::put_", 3, may_be_put},
                                         {"aten::bernoulli_", 2, may_be_drawn},
                                         {"aten::bernoulli", 2, may_be_drawn},
                                         {"aten::embedding_renorm_", 2, may_be_scaled}}};

}  // namespace

bool in_place_arguments_may_be_refused(const Call& call) {
  const auto* const rule = std::ranges::find(kRules, call.info.base, &Rule::base);
  if (rule == kRules.end() || call.looks.size() != rule->tensors) return false;
  return std::ranges::any_of(call.looks, [](const auto& look) { return !look; }) ||
         !rule->fits(call);
}

}  // namespace lazyeng::record
