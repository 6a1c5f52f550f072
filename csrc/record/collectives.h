// csrc/record/collectives.h: torch.distributed's operations on lazy tensors.
#pragma once

namespace lazyeng::record {

/// Registers kernels for the ops of c10d, if torch was built with it. Once per process.
void register_collectives();

}  // namespace lazyeng::record
