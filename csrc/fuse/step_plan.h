// csrc/fuse/step_plan.h: what a window becomes that was seen before, without a partition.
//
// A loop records the same calls over and over. The first two times that a window of them comes, the
// partition groups it; from then on the step plan that was kept is replayed: which nodes run as
// groups and in which order they are pushed, what each group's tensors and vars are, and which
// programs it has run as. What differs between two steps (tensors, memory, numbers, stacks) is read
// from the nodes.
//
// A window is known by words that say all that the partition looks at: of each node its op and
// plan, settings, device and queue, the looks of its tensors, which vars are the same, what it
// claims, and the numbers that decide whether or how a program can do it. Of where a tensor begins
// in its storage only this counts: whether another one of that storage begins there (`same` in
// candidate.h), so that `data[i]` of another i is the same window. The words are compared one by
// one, not only their hash; another shape, path or setting is another window. One thing is looked
// at while replaying: that what was one value is one value again. If not, that window is
// partitioned, and the plan stays.
//
// Windows repeat as somebody reads in each step, or as csrc/record/window/loop_cuts.h has them cut.
//
// Not thread safe: used under the lock of pushes.
#pragma once

#include <optional>

#include "csrc/fuse/kept_plans.h"
#include "csrc/fuse/key.h"
#include "csrc/fuse/partition.h"

namespace lazyeng::fuse {

class StepPlan;

class StepPlans {
 public:
  using Batch = Partition::Batch;

  explicit StepPlans(Partition& partition);
  ~StepPlans();

  /// The ops to push for these nodes, in order, as of Partition::run.
  Batch run(Batch nodes);
  /// By how many bytes the groups of the last run cost less than their nodes.
  uint64_t spared() const { return spared_; }

 private:
  struct Seen {
    uint64_t hash = 0;   // of a window
    uint64_t asked = 0;  // how often plans had been asked for
  };
  struct KnownVar {
    run::StorageVar* var;
    c10::SmallVector<int64_t, 2> offsets;  // of its tensors, each once
  };

  bool describe(const Batch& nodes);
  bool add_node(const run::Node& node);
  bool add_look(const run::Value& value);
  uint64_t place_of(run::StorageVar& var);
  std::optional<uint64_t> place_of_offset(const run::Value& value);
  uint64_t place_of_kernel(uint64_t number);
  StepPlan* find(uint64_t hash);
  std::optional<uint64_t> asked_since(uint64_t hash);
  Batch partition(Batch nodes);

  Partition& partition_;
  uint64_t spared_ = 0;
  Key words_;                            // of the window at hand
  std::vector<run::GeometryRef> looks_;  // whose addresses are among them
  std::vector<KnownVar> vars_;           // by their places
  std::vector<uint64_t> kernels_;        // likewise: foreign ones, by their numbers
  std::vector<Seen> seen_;               // each in its place
  KeptPlans<StepPlan> plans_;
  uint64_t rules_ = 0;  // that all plans are of
};

/// Nodes in windows that a step plan was replayed for.
uint64_t replayed_nodes();

}  // namespace lazyeng::fuse
