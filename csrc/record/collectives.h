// csrc/record/collectives.h: torch.distributed's operations on lazy tensors.
#pragma once

#include <torch/library.h>

namespace lazyeng::record {

/// Registers kernels for the ops of c10d, if torch was built with it. Once per process.
void register_collectives();

/// Whether an op, perhaps defined since then (some are in Python), is called as those are.
bool is_collective(const c10::OperatorName& name);
torch::CppFunction collective_kernel();

}  // namespace lazyeng::record
