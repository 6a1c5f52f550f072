// csrc/record/generators.h: one engine var per random generator, so that numbers are drawn in
// program order.
#pragma once

#include <ATen/core/Generator.h>

#include "csrc/record/call.h"

namespace lazyeng::record {

/// The var of the generator that this call draws from: the one it was given, or the default one of
/// its device.
run::StorageVarRef generator_var(const Call& call);
/// Those of all generators that recorded ops have drawn from.
std::vector<run::StorageVarRef> all_generator_vars();

}  // namespace lazyeng::record
