// csrc/record/graph.h: a picture of what is recorded and has not run yet (lazyeng.graph).
#pragma once

#include <string>
#include <vector>

#include "csrc/run/node.h"

namespace lazyeng::record {

struct GraphNode {
  Ref<run::Node> node;
  int group = -1;               ///< nodes with the same one run, or will run, fused; -1: alone
  bool pushed = false;          ///< the engine has it; otherwise it stands in the window
  std::vector<size_t> reads;    ///< places, in the picture, of the nodes that make what it reads
  std::vector<size_t> follows;  ///< of those that only must come before it: it overwrites what they
                                ///< read or wrote
};

/// Ops in the order of recording.
using Graph = std::vector<GraphNode>;

/// What can be found from these ops: `window` stands in the window, in groups as they would be
/// pushed now (Pusher::planned); what the engine holds is found through the vars that they and
/// `vars` name. Only what one of `vars` needs is kept, all if there are none.
Graph make_graph(const std::vector<Ref<engine::Op>>& window,
                 const std::vector<run::StorageVarRef>& vars);

}  // namespace lazyeng::record
