// csrc/fuse/torch_functions.h: functions as torch's own kernels compute them, to the bit.
//
// torch's CPU kernels take sqrt, exp, tanh and others of float and double from MKL, whose last bits
// are not those of at::vec. MKL is part of libtorch, so a tile program can call the same functions.
#pragma once

#include "csrc/fuse/tile_kernel.h"

namespace lazyeng::fuse {

/// Null: torch has no other than at::vec's, or this build of it has no MKL.
Kernel torch_function(Opcode opcode, Type type);

}  // namespace lazyeng::fuse
