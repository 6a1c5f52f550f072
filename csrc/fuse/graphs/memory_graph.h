// csrc/fuse/graphs/memory_graph.h: a CUDA graph in place of the launches of a segment, over one
// memory.
//
// A step plan (step_plan.h) gives equal ops over other memory, with other numbers. A graph has
// fixed both. So each time the segment is observed: its numbers, where its tensors lie, and which
// of its results somebody holds. Twice the same numbers in a row, and the second is captured;
// then each that agrees is launched as the graph. What does not agree runs as its ops, at that
// time. Ops whose numbers change in each step (AdamW's corrections) are found out by that, and the
// plan's next segments are what lies between them.
//
//   tensors that it only reads   the address is the captured one; or, once it has differed, they
//                                are copied to memory of the graph before the launch
//   tensors that it writes       the address is the captured one
//   results that somebody holds  get memory of their own, and are copied there after the launch
//   results that nobody holds    stay in the graph
//
// All of that, the launch included, is on the default stream, so each launch follows the copies of
// the last one. The capture itself happens with stand-ins for the results and the copied inputs:
// the segment's own vars and values get nothing before a launch has succeeded.
//
// Which of the segments that repeat a plan come to this graph: step_graph.h.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "csrc/fuse/graphs/observation.h"

namespace lazyeng::fuse {

/// A graph and what it was captured with.
struct CapturedGraph;

/// Not thread safe. A replay is one of the plan; their numbers grow.
class MemoryGraph {
 public:
  MemoryGraph();
  ~MemoryGraph();

  /// On the engine thread that may run the segment. False: nothing has happened. Throws what a
  /// capture does, and then is of no more use.
  bool run(Segment& segment, Observation now, uint64_t replay);
  /// The first replay that may be worth it to be asked about.
  uint64_t resumes_at() const { return resumes_at_; }
  void give_up();
  uint64_t last_replay() const { return replay_; }
  /// There are as many graphs as may be, of the whole process.
  static bool too_many();
  /// It has been captured, or observed twice.
  bool came_again() const { return observed_ > 1; }
  /// Of each node, whether its numbers keep changing, or it cannot be captured. Empty: the segment
  /// is as it should be.
  std::vector<bool> changing_nodes() const;

 private:
  bool may_capture(const Observation& now) const;
  bool capture(Segment& segment, const Observation& now);
  void leave_out(Segment& segment, size_t op);
  bool launch(Segment& segment, const Observation& now);
  void note_changes(const Observation& now);
  void note_changed_places(const Observation& before, const Observation& now);
  void note_changed_numbers(const Observation& now);
  void note_miss();
  void pause();

  std::unique_ptr<const CapturedGraph> graph_;
  std::optional<Observation> last_;
  std::vector<bool> copied_;     // inputs whose address has differed
  std::vector<bool> kept_;       // results that somebody has held
  std::vector<bool> changing_;   // nodes whose numbers have differed, since the last launch
  uint32_t misses_ = 0;          // in a row
  uint32_t launches_ = 0;        // since the last capture
  uint32_t hasty_captures_ = 0;  // in a row, each after few launches
  uint32_t pauses_ = 0;          // in a row
  uint64_t observed_ = 0;
  uint64_t replay_ = 0;  // the last one
  uint64_t resumes_at_ = 0;
  bool numbers_change_ = false;  // or some cannot be captured
};

struct GraphStats {
  std::atomic<uint64_t> launches{0};
  std::atomic<uint64_t> nodes{0};  ///< ops in them
  std::atomic<uint64_t> bytes{0};  ///< of results and copied inputs that live with graphs
};
GraphStats& graph_stats();

}  // namespace lazyeng::fuse
