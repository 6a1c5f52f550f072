// csrc/fuse/foreign_kernels.h: which nodes wait for kernels that may wait for anything.
//
// A kernel in Python, or a collective, may wait for what another thread does next: for an event
// that it sets when it has read a value of its own. So what need not wait for that kernel must not:
// a group runs when all its inputs are there, and takes only nodes that wait for the same kernels.
// (Two that wait for several of them count as alike if the newest of these is the same.)
#pragma once

#include <vector>

#include "csrc/run/node.h"

namespace lazyeng::fuse {

class ForeignKernels {
 public:
  /// Sets Node::behind. For all nodes, in the order of pushes, just before they are pushed; with
  /// the lock of pushes.
  void label(const std::vector<Ref<engine::Op>>& nodes);

 private:
  bool seen_ = false;  // there was one; until then there is nothing to look for
};

}  // namespace lazyeng::fuse
