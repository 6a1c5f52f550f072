// csrc/fuse/bits/torch_functions.h: functions as torch's own kernels compute them, to the bit.
//
// torch's CPU kernels take sqrt, exp, tanh and others of float and double from MKL, whose last bits
// are not those of at::vec. MKL is part of libtorch, so a tile program can call the same functions.
#pragma once

#include "csrc/fuse/tiles/tile_kernel.h"

namespace lazyeng::fuse {

/// Null: torch has no other than at::vec's, or this build of it has no MKL.
Kernel torch_function(Opcode opcode, Type type);

/// Once, when the module is loaded. MKL chooses its functions at the first call, and not in a way
/// that is safe for threads: of two that make it at the same time one may get a function of less
/// accuracy (docs/internals/bits.md, What was found).
void prepare_torch_functions();

}  // namespace lazyeng::fuse
