// csrc/record/metadata/convolution_arguments.h: what kernels of convolutions refuse, and their meta
// function takes.
#pragma once

#include "csrc/record/call.h"

namespace lazyeng::record {

/// True for a convolution whose arguments the kernel may refuse: it runs at the call then. (Sizes
/// that are too small for the window are refused by the meta function, too.)
bool convolution_may_be_refused(const Call& call);

}  // namespace lazyeng::record
