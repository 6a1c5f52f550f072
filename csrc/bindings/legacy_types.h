// csrc/bindings/legacy_types.h: isinstance(x, torch.FloatTensor) of a lazy tensor.
#pragma once

#include <Python.h>

namespace lazyeng {

/// torch's metaclass of `torch.FloatTensor` and the like looks at a tensor's backend key, which
/// here is not that of the device: lazy tensors are asked for their own `type()`. False with a
/// Python error set on failure. Once per process.
bool install_legacy_types();

}  // namespace lazyeng
