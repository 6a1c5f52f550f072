// csrc/record/special/nested.h: strided nested tensors, which torch's C++ code makes and takes
// apart by looking at memory.
#pragma once

#include "csrc/run/op_info.h"

namespace lazyeng::record {

/// The backward pass of `unbind` takes rows of the matrix of sizes, and reads them: they are plain,
/// also in a block. False: it is another call.
bool select_nested_sizes(const run::OpInfo& info, torch::jit::Stack& stack);

/// Factories that are given the device "lazyeng" make the plain nested tensor that
/// `nested.to("lazyeng")` is. (Its buffer would be a lazy tensor, which no kernel of theirs knows.)
/// And `reshape`.
void register_nested_kernels();

}  // namespace lazyeng::record
