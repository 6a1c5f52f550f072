// csrc/run/device/own_kernels.h: what runs ops of devices in place of torch's own kernels
// (csrc/fuse).
#pragma once

namespace lazyeng::run {

class Node;

/// True: it ran the node and installed its results. False: nothing has happened. Throws as a
/// kernel of torch does.
using OwnKernels = bool (*)(Node& node);

/// Any thread. Null: torch's kernels run everything.
void set_own_kernels(OwnKernels run);
/// On an engine thread, in place of the call of a kernel. What is to be found out by running it
/// (mode sync, first calls of some ops) is left to torch.
bool run_own_kernels(Node& node);

}  // namespace lazyeng::run
