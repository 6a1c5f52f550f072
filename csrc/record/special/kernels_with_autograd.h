// csrc/record/special/kernels_with_autograd.h: ops whose derivative is that of what their kernel is
// made of.
//
// For an op that has no kernel for autograd (a library's, registered for "CPU" alone) torch calls
// the one it has with autograd on. What that calls is differentiated, as if it stood in the
// program. Recorded whole such an op would have no derivative. So where a gradient is wanted its
// kernel runs at the call, on plain tensors that autograd takes for views of the lazy ones
// (plain_views.h).
#pragma once

#include <ATen/core/stack.h>

#include "csrc/run/op_info.h"

namespace lazyeng::record {

/// The call has come to its kernel with autograd on, and an argument requires grad.
bool autograd_looks_inside(const run::OpInfo& info, const torch::jit::Stack& stack);

/// Calls the kernel so. The results are plain, or what the call was given.
void run_with_autograd(const run::OpInfo& info, torch::jit::Stack* stack);

/// A kernel for the dispatcher: the same of ops that are registered as decompositions, where a
/// gradient is wanted. Other calls fall through.
void decompose_with_autograd(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                             torch::jit::Stack* stack);

}  // namespace lazyeng::record
