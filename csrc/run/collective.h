// csrc/run/collective.h: the end of a collective of torch.distributed.
#pragma once

#include <ATen/core/stack.h>

namespace lazyeng::run {

/// Returns when the backend has written the tensors, or lists of tensors, that a functional
/// collective returned; raises what it failed with.
void wait_for_collective(const torch::jit::Stack& results);

}  // namespace lazyeng::run
