// csrc/fuse/foreign_kernels.cpp: labels go from writes to reads, and from reads to the next write.
#include "csrc/fuse/foreign_kernels.h"

#include <algorithm>

namespace lazyeng::fuse {
namespace {

bool is_foreign(const run::Node& node) {
  return node.queue == engine::QueueId::python || node.collective;
}

/// The newest that one of the node's claims waits for; 0: none does. `first`: of those that are
/// pushed now, whose accesses the engine does not know yet.
uint64_t newest_ahead(const run::Node& node, uint64_t first) {
  uint64_t newest = 0;
  for (const engine::Access& claim : node.claims()) {
    const auto& var = static_cast<const run::StorageVar&>(*claim.var);
    if (var.written_behind != 0 && var.awaited()) newest = std::max(newest, var.written_behind);
    if (claim.write && var.read_behind != 0 && (var.read_behind >= first || !var.idle()))
      newest = std::max(newest, var.read_behind);
  }
  return newest;
}

}  // namespace

void ForeignKernels::label(const std::vector<Ref<engine::Op>>& nodes) {
  if (nodes.empty()) return;
  const uint64_t first = static_cast<const run::Node&>(*nodes[0]).number;
  for (const Ref<engine::Op>& op : nodes) {
    auto& node = static_cast<run::Node&>(*op);
    const bool foreign = is_foreign(node);
    if (!foreign && !seen_) continue;
    seen_ = true;
    node.behind = newest_ahead(node, first);
    const uint64_t label = foreign ? node.number : node.behind;
    for (const engine::Access& claim : node.claims()) {
      auto& var = static_cast<run::StorageVar&>(*claim.var);
      if (claim.write) {
        var.written_behind = label;
        var.read_behind = 0;
      } else if (label != 0) {
        var.read_behind = std::max(var.read_behind, label);
      }
    }
  }
}

}  // namespace lazyeng::fuse
