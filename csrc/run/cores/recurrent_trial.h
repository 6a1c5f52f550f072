// csrc/run/cores/recurrent_trial.h: made-up arguments of oneDNN's recurrent layers, which have to
// fit each other.
//
// The gradient of a layer reads a workspace that its forward kernel has left: no made-up bytes will
// do. And gates are saturated by large numbers: then gradients are zeros, which show nothing.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include "csrc/run/op_info.h"

namespace lazyeng::run {

/// Changes numbers between 1 and 2 (the call's own memory) to smaller ones of both signs, and, for
/// the gradient, what the layer has made to what it makes of these.
void fit_to_recurrent_layer(const OpInfo& info, torch::jit::Stack& args);

/// What only the layer's own kernels read. (It has bytes that they do not write.)
bool is_workspace(const OpInfo& info, const at::Tensor& result);

}  // namespace lazyeng::run
