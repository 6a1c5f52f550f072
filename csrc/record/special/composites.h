// csrc/record/special/composites.h: ops that torch writes in terms of others in a way that does not
// suit us.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace lazyeng::record {

/// Puts plain tensors in place of the lazy integer tensors among the arguments on the stack; not of
/// those that the results are views of, which would then be plain. Waits for their values.
void read_integers(const c10::OperatorHandle& op, torch::jit::Stack* stack);

/// Registers kernels for the few ops of torch whose decomposition reads a tensor's memory, or makes
/// a plain result of a lazy argument. Once per process.
void register_opaque_composites();

}  // namespace lazyeng::record
