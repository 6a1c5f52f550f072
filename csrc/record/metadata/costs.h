// csrc/record/metadata/costs.h: what is known about the cost of a call once it is known what it
// returns.
#pragma once

#include "csrc/record/metadata/infer.h"

namespace lazyeng::record {

/// Sets `small`, `fans_out` and `width` of the plan.
void add_costs(const Call& call, CallPlan& plan);

}  // namespace lazyeng::record
