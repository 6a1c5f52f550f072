// csrc/fuse/graphs/planned_segments.h: which ops of a step plan are pushed as segments.
//
// Ops in a row that may all be captured (capturable.h) are one segment (segment.h), if they are
// enough for the launch of a graph to be less work. Ops whose numbers keep changing turn out later,
// and are left out: what lies between them becomes the segments.
//
// Under the lock of pushes.
#pragma once

#include "csrc/fuse/graphs/segment.h"

namespace lazyeng::fuse {

/// Of one step plan.
class PlannedSegments {
 public:
  /// The ops of a replay, with those of segments that are due as one op each.
  Segment::Batch divide(Segment::Batch ops);

 private:
  struct Planned {
    size_t begin, end;  // of what is pushed
    std::shared_ptr<StepGraph> graph;
  };

  void plan(const Segment::Batch& ops);
  void add(size_t begin, size_t end);
  void leave_out_changing(const Segment::Batch& ops);

  bool planned_ = false;
  std::vector<Planned> segments_;
};

}  // namespace lazyeng::fuse
