// csrc/record/plain_views.h: plain tensors that autograd takes for views of a lazy one.
#pragma once

#include <ATen/core/Tensor.h>

namespace lazyeng::record {

/// A plain tensor over the memory of a lazy one, whose value is complete. To autograd it is a view:
/// it has the lazy tensor's history and version, and what is written to it in place belongs to the
/// history of both. Gradients that come back through it are lazy. GIL.
at::Tensor plain_view(const at::Tensor& lazy);

}  // namespace lazyeng::record
