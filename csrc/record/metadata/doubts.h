// csrc/record/metadata/doubts.h: which calls have the same cause to be doubted.
#pragma once

#include "csrc/record/call.h"
#include "csrc/run/doubts.h"

namespace lazyeng::record {

/// Of calls of this kind (KindTable), whose tensors also are, or are not, contiguous. What cannot
/// be told apart has one kind for the op.
run::DoubtedKind doubted_kind(const Call& call);

/// Contiguous, and no dim is of one element, which may have any stride.
bool has_usual_strides(const run::Geometry& look);

}  // namespace lazyeng::record
