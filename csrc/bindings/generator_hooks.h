// csrc/bindings/generator_hooks.h: torch.Generator's state is read and set in program order.
#pragma once

#include <Python.h>

namespace lazyeng {

/// Puts a wait for recorded draws in front of the methods of torch.Generator that read or set its
/// state. (torch offers no hook there, and torch.manual_seed, get_rng_state, fork_rng and
/// checkpointing all end in them.) False with a Python error set on failure. Once per process.
bool install_generator_hooks();

}  // namespace lazyeng
