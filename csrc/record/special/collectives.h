// csrc/record/special/collectives.h: torch.distributed's operations on lazy tensors.
#pragma once

#include <torch/library.h>

#include <optional>

#include "csrc/run/storage_var.h"

namespace lazyeng::record {

/// Registers kernels for the ops of c10d, if torch was built with it. Once per process.
void register_collectives();

/// Of an op of torch.distributed, perhaps defined since then (some are in Python), that is not
/// recorded as others are.
std::optional<torch::CppFunction> collective_kernel(const c10::OperatorHandle& op);

/// Whether the calling thread's collectives are not recorded: a backend joins them to one call.
void set_collectives_at_the_call(bool on);

/// The var that all recorded collectives write.
const run::StorageVarRef& order_of_collectives();

}  // namespace lazyeng::record
