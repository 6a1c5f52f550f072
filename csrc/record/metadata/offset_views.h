// csrc/record/metadata/offset_views.h: views that numbers among the arguments place: x[i], x[i:j].
//
// Programs make these with ever new numbers (a row for each sample, a slice for each batch), so
// that plans found by their arguments would each be used once. What these ops return is a sum.
#pragma once

#include "csrc/record/metadata/infer.h"

namespace lazyeng::record {

/// x.select(dim, index). False: out of range, which torch says in its own words.
bool select(run::GeometryData& look, size_t dim, int64_t index);
/// x.slice(dim, start, end, step); negative numbers count from the end. False: as above.
bool slice(run::GeometryData& look, size_t dim, int64_t start, int64_t end, int64_t step);
/// x.unsqueeze(dim)
void unsqueeze(run::GeometryData& look, size_t dim);

/// Takes the arguments of aten::select.int or aten::slice.Tensor off the stack and puts the view
/// there, without a Call. False: another op, or something that record() has to look at.
bool record_offset_view(const run::OpInfo& info, torch::jit::Stack& stack);

/// The plan of aten::select.int or aten::slice.Tensor. Null for other ops, and for arguments that
/// the op may refuse.
CallPlanRef plan_of_offset_view(const Call& call);

}  // namespace lazyeng::record
