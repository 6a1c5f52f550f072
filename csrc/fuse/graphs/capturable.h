// csrc/fuse/graphs/capturable.h: which ops may become part of a CUDA graph.
#pragma once

#include "csrc/run/node.h"

namespace lazyeng::fuse {

/// Whether all that the node does is to launch kernels on the default stream of its device: it
/// waits for nothing, reads no memory of the host, and what it launches depends on nothing but
/// its looks, its numbers and where its tensors lie.
bool is_capturable(const run::Node& node);

}  // namespace lazyeng::fuse
