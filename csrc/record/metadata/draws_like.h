// csrc/record/metadata/draws_like.h: rand_like and randn_like make what empty_like makes, which
// draws nothing.
#pragma once

#include "csrc/record/call.h"

namespace lazyeng::record {

/// rand_like and randn_like, on the device of their tensor.
bool draws_like(const Call& call);

/// The call of empty_like with the same tensor and options.
Call as_empty_like(const Call& call);

}  // namespace lazyeng::record
