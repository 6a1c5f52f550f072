// csrc/record/special/collective_shapes.h: which collectives are sure to be accepted by a backend.
#pragma once

#include <ATen/core/stack.h>

#include "csrc/run/op_info.h"

namespace lazyeng::record {

/// Whether the arguments of an op of c10d are such that every backend accepts them. What a backend
/// refuses it refuses at the call, in its own words, so calls of which this is not known are made
/// at once. Looks at no values.
bool is_accepted(const run::OpInfo& info, c10::ArrayRef<c10::IValue> arguments);

}  // namespace lazyeng::record
