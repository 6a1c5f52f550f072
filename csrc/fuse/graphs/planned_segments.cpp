// csrc/fuse/graphs/planned_segments.cpp: dividing what a step plan pushes.
#include "csrc/fuse/graphs/planned_segments.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "csrc/fuse/graphs/capturable.h"
#include "csrc/fuse/graphs/step_graph.h"

namespace lazyeng::fuse {
namespace {

bool may_be_captured(engine::Op& op) {
  const Group* const group = as_group(op);
  if (!group) return is_capturable(static_cast<const run::Node&>(op));
  return std::ranges::all_of(group->members,
                             [](const Member& member) { return is_capturable(*member.node); });
}

}  // namespace

/// A segment of ops in that place, if it is long enough for a launch to be less work.
void PlannedSegments::add(size_t begin, size_t end) {
  constexpr size_t kLeast = 4;
  if (end - begin >= kLeast) segments_.push_back({begin, end, std::make_shared<StepGraph>()});
}

void PlannedSegments::plan(const Segment::Batch& ops) {
  planned_ = true;
  for (size_t begin = 0, end; begin < ops.size(); begin = end + 1) {
    for (end = begin; end < ops.size() && may_be_captured(*ops[end]);) ++end;
    add(begin, end);
  }
}

/// Without ops whose numbers keep changing.
void PlannedSegments::leave_out_changing(const Segment::Batch& ops) {
  for (Planned& segment : std::exchange(segments_, {})) {
    const std::optional<std::vector<bool>> changing = segment.graph->changing_nodes();
    if (!changing) {
      segments_.push_back(std::move(segment));
      continue;
    }
    size_t begin = segment.begin, node = 0;
    for (size_t i = segment.begin; i < segment.end; ++i) {
      const size_t end = node + nodes_in(*ops[i]);
      const bool changes = std::find(changing->begin() + node, changing->begin() + end, true) !=
                           changing->begin() + end;
      node = end;
      if (!changes) continue;
      add(begin, i);
      begin = i + 1;
    }
    add(begin, segment.end);
  }
}

Segment::Batch PlannedSegments::divide(Segment::Batch ops) {
  planned_ ? leave_out_changing(ops) : plan(ops);
  if (segments_.empty()) return ops;
  Segment::Batch pushed;
  size_t next = 0;
  const auto push_until = [&](size_t end) {
    for (; next < end; ++next) pushed.push_back(std::move(ops[next]));
  };
  for (const Planned& segment : segments_) {
    push_until(segment.begin);
    if (!segment.graph->is_due()) continue;
    const auto from = std::make_move_iterator(ops.begin());
    Segment::Batch members(from + static_cast<ptrdiff_t>(segment.begin),
                           from + static_cast<ptrdiff_t>(segment.end));
    pushed.push_back(make_ref<Segment>(std::move(members), segment.graph));
    next = segment.end;
  }
  push_until(ops.size());
  return pushed;
}

}  // namespace lazyeng::fuse
