// csrc/record/forward_stacks.h: which line called the op whose gradient is being computed.
//
// Autograd makes its node for an op just before it calls our kernel, and numbers it. The number,
// with the thread, finds the stack of the op again when that node runs in the backward pass.
#pragma once

#include "csrc/stacks/stack_table.h"

namespace lazyeng::record {

/// Whether autograd has made a node since the last call of note_forward on this thread.
bool has_new_autograd_node();

/// Remembers the stack for the newest autograd node of this thread. A bounded number is remembered:
/// the newest. GIL.
void note_forward(const stacks::StackRef& stack);

/// The stack of the op whose autograd node runs on this thread; null if none does, or if it was
/// forgotten. GIL.
stacks::StackRef forward_stack();

}  // namespace lazyeng::record
