// csrc/record/metadata/failed_first_call.h: what a call would have returned that has failed.
#pragma once

#include "csrc/record/metadata/infer.h"

namespace lazyeng::record {

/// Its arguments are well-formed, and it failed by what they hold: the plan of such calls. Null:
/// it was refused for what the arguments look like, or nobody can tell.
CallPlanRef plan_in_spite_of(const Call& call, const run::Node::Discovery& found);

}  // namespace lazyeng::record
