// csrc/record/metadata/number_range.h: numbers that the dtypes of a call cannot hold.
//
// Most kernels convert the numbers that they get to the dtype that they compute in, and raise
// "value cannot be converted to type at::Half without overflow" where one does not fit; meta
// functions convert nothing. And numbers that nothing can be drawn by.
#pragma once

#include "csrc/record/call.h"

namespace lazyeng::record {

/// Whether a number, or each number of a list, is one of every dtype that the call computes in, as
/// far as its tensors and its argument "dtype" tell. (True of what is no number, and of masks:
/// every number is true or false.) Where it is not, kernels may refuse, and only they know.
bool number_fits(const Call& call, const c10::IValue& number);
/// Of all Scalar arguments.
bool numbers_fit(const Call& call);

/// Numbers that are no integers, and tensors of integers alone: some kernels compute in floats
/// then, and some refuse.
bool has_reals_for_integers(const Call& call);

/// False of a draw by a probability beyond 0 to 1, or between bounds with nothing between them:
/// kernels refuse those, and meta functions do not look.
bool can_be_drawn(const Call& call);

/// False of a histogram between bounds that are none.
bool counts_between_bounds(const Call& call);

}  // namespace lazyeng::record
