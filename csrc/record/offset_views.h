// csrc/record/offset_views.h: views that numbers among the arguments place: x[i], x[i:j].
//
// Programs make these with ever new numbers (a row for each sample, a slice for each batch), so
// that plans found by their arguments would each be used once. What these ops return is a sum.
#pragma once

#include "csrc/record/infer.h"

namespace lazyeng::record {

/// The plan of aten::select.int or aten::slice.Tensor. Null for other ops, and for arguments that
/// the op may refuse.
PlanRef plan_of_offset_view(const Call& call);

}  // namespace lazyeng::record
