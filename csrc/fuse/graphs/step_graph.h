// csrc/fuse/graphs/step_graph.h: the CUDA graphs of one segment of a step plan.
//
// Equal ops over other memory are replays of one plan: the layers of a model, which have weights of
// their own. A graph of one of them would have the others' weights copied to it. So there is one
// graph for each memory (memory_graph.h), told apart by where that lies which cannot be copied, as
// it is written, or is not worth it, as it is large. Where such memory hardly ever comes again
// (large batches, each allocated anew), all replays share one graph.
#pragma once

#include <mutex>
#include <unordered_map>

#include "csrc/fuse/graphs/memory_graph.h"

namespace lazyeng::fuse {

/// Any thread.
class StepGraph {
 public:
  /// Under the lock of pushes, once for each replay of the plan: whether its ops are to be pushed
  /// as a Segment.
  bool is_due();
  /// Under the lock of pushes: of each node, whether its numbers keep changing. Nothing: the
  /// segment is as it should be.
  std::optional<std::vector<bool>> changing_nodes();
  /// On an engine thread that may run the segment. False: nothing has happened.
  bool run(Segment& segment) noexcept;

 private:
  bool run_locked(Segment& segment);
  MemoryGraph& graph_for(const Observation& now, uint64_t replay);
  void make_room(uint64_t replay);
  void note_resumption(uint64_t replay);
  void note_unobserved();

  static constexpr uint64_t kFirst = 3;  // the replay that is observed first

  std::mutex mutex_;  // one segment at a time; another one runs as its ops
  std::unordered_map<uint64_t, MemoryGraph> graphs_;
  bool by_memory_ = true;
  uint32_t unobserved_ = 0;  // in a row

  std::atomic<uint64_t> replays_{0};
  std::atomic<uint64_t> resumes_at_{kFirst};
  std::atomic<bool> numbers_change_{false};
};

/// Whether segments become graphs. Any thread.
void set_cuda_graphs(bool on);
bool cuda_graphs();

}  // namespace lazyeng::fuse
