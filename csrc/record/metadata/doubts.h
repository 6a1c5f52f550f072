// csrc/record/metadata/doubts.h: which calls have the same cause to be doubted.
//
// A meta function that is wrong about one call is wrong about others like it, of other sizes. But
// not about all calls of the op: who multiplies an expanded mask once need not learn by runs, from
// then on, what each product of numbers looks like.
#pragma once

#include "csrc/record/call.h"

namespace lazyeng::record {

/// Of calls of this kind (KindTable), whose tensors also are, or are not, contiguous.
run::Doubt& doubt_of(const Call& call);

/// Contiguous, and no dim is of one element, which may have any stride.
bool has_usual_strides(const run::Geometry& look);

}  // namespace lazyeng::record
