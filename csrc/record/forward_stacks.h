// csrc/record/forward_stacks.h: which line called the op whose gradient is being computed.
//
// Autograd makes its node for an op just before it calls our kernel, and numbers it. The number,
// with the thread, finds the stack of the op again when that node runs in the backward pass.
#pragma once

#include <ATen/core/Tensor.h>

#include "csrc/run/node.h"
#include "csrc/stacks/stack_table.h"

namespace lazyeng::record {

/// Whether autograd runs one of its nodes on this thread.
bool in_backward_pass();

/// Whether autograd has made a node since the last call of note_forward on this thread.
bool has_new_autograd_node();

/// Remembers the stack for the newest autograd node of this thread, that of `result` (undefined:
/// not known), for as long as the node lives. GIL.
void note_forward(const stacks::StackRef& stack, const at::Tensor& result);

/// Notes in the node the stack of this call and, in a backward pass, that of the forward op. True
/// if the call is one whose gradient may be asked for. GIL.
bool capture_stacks(run::Node& node, const at::Tensor& result);

/// The result of the newest call of note_forward, if that did not know it. GIL.
void note_forward_result(const at::Tensor& result);
/// To be called by what is called next on the thread and does not note anything itself. GIL.
void find_forward_node();

/// The stack of the op whose autograd node runs on this thread; null if none does. GIL.
stacks::StackRef forward_stack();

/// What another thread was doing with the newest result when the process was forked is not done.
void forget_newest_in_child() noexcept;

/// Lets go of the stacks of nodes that are gone; otherwise that happens as new ones come. GIL.
void forget_dead_forward_stacks();

}  // namespace lazyeng::record
