// csrc/record/special/temporaries.h: in-place ops on plain tensors that only C++ knows yet.
#pragma once

#include <ATen/core/stack.h>

#include "csrc/run/op_info.h"

namespace lazyeng::record {

/// Runs the op at once, unrecorded, if it writes a plain tensor that has no Python object yet and
/// reads nothing that waits: torch.zeros and torch.randn inside lazy() are made of such ops and
/// come back plain and complete. Draws from a generator wait for the recorded ones. False: not such
/// an op.
bool write_temporary(const run::OpInfo& info, torch::jit::Stack* stack);

}  // namespace lazyeng::record
