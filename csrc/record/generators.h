// csrc/record/generators.h: one engine var per random generator, so that numbers are drawn in
// program order.
#pragma once

#include <ATen/core/Generator.h>

#include "csrc/record/call.h"

namespace lazyeng::record {

/// The var of the generator that this call draws from: the one it was given, or the default one of
/// its device.
run::StorageVarRef generator_var(const Call& call);
/// The var of a generator, or null if no recorded op has drawn from it.
run::StorageVarRef known_generator_var(const c10::GeneratorImpl* generator);
/// All of them.
std::vector<run::StorageVarRef> all_generator_vars();

}  // namespace lazyeng::record
