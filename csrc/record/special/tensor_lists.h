// csrc/record/special/tensor_lists.h: ops over lists of tensors (_foreach_add_, ...), recorded
// tensor by tensor.
#pragma once

#include <torch/library.h>

#include <optional>

namespace lazyeng::record {

/// The kernel of an op that is taken apart into one op for each tensor of its list; none: `op` is
/// no such op.
std::optional<torch::CppFunction> tensor_list_kernel(const c10::OperatorHandle& op);

}  // namespace lazyeng::record
