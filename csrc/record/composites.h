// csrc/record/composites.h: ops that torch writes in terms of others in a way that does not suit
// us.
#pragma once

namespace lazyeng::record {

/// Registers kernels for the few ops of torch whose decomposition reads a tensor's memory, or makes
/// a plain result of a lazy argument. Once per process.
void register_opaque_composites();

}  // namespace lazyeng::record
