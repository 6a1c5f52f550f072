// csrc/fuse/partition.h: which nodes of a window run as groups.
//
// One pass over the nodes in the order of recording. Some groups are open at a time, each over one
// iteration shape: as many as an optimizer that goes over lists has shapes of parameters. A node
// joins the open group of its shape if everything it shares with it is accessed in one way. The
// first node that reduces along dims gives its group rows; then nodes over the results of such
// reductions join too, which do their work once for each row. Every other open group that it
// conflicts with (one of the two writes what the other touches) is closed first, that is, emitted.
// So at any moment no two open groups conflict, and moving the members of a group to the place
// where it is emitted passes over nothing that they conflict with: the order of any two conflicting
// nodes stays. The work for a node is in proportion to its arguments: which open groups use a var
// stands in a table that the var has its place in, as a bit each.
//
// Nodes over many elements have to be of one component as well: a pass before that one unites the
// vars that each of them goes over, so that what is independent (the parameters of an optimizer)
// runs as groups of its own. A group goes over all of its tensors at the same time: of many large
// ones the processor fetches none ahead, and they drive each other out of its caches. With few
// elements what an op of the engine costs counts for more.
//
// For the same reason a group does not wait for many large operands: what others make after its
// first member could run is in the processor's caches when it is made, and a total of gradients,
// one for each step of a recurrent layer, would keep them all. (On devices a launch costs more.)
//
// Not thread safe: used under the lock of pushes.
#pragma once

#include <array>
#include <vector>

#include "csrc/fuse/candidate.h"
#include "csrc/fuse/group.h"

namespace lazyeng::fuse {

class Partition {
 public:
  using Batch = std::vector<Ref<engine::Op>>;
  /// The ops to push for these nodes, in order; groups of one stay the node that they are.
  Batch run(Batch nodes);
  /// By how many bytes the groups of the last run cost less than their nodes.
  uint64_t spared() const { return spared_; }
  /// The same, for a look: nothing changes, and the groups cannot be pushed.
  Batch plan(const Batch& nodes);

 private:
  static constexpr size_t kOpen = 30;
  /// Two more (csrc/fuse/chosen_ops.h): for a node that begins a pair, until the other one comes,
  /// and for a chain over lists.
  static constexpr size_t kPair = kOpen, kLists = kOpen + 1, kSlots = kOpen + 2;
  static_assert(kSlots <= 32);
  static constexpr uint32_t kNoComponent = ~uint32_t{0};

  /// What only the building of a group needs to know of a var.
  struct VarUse {
    Mapping first;
    bool several = false;  ///< read in more than one way
    int16_t last_value = kNone;
    int64_t place = 0;  ///< in its list, of a chain over lists
  };

  struct Open {
    Ref<Group> group;
    uint32_t serial = 0;                  ///< the later one was opened later
    uint64_t used = 0;                    ///< when a node joined it last
    std::vector<VarUse> uses;             ///< of each of the group's vars
    std::vector<int16_t> previous_value;  ///< of each value: the one before it on the same var
    int64_t length = 0;                   ///< of the lists of a chain
    uint32_t component = kNoComponent;    ///< of its members over many elements
    size_t opened_at = 0;                 ///< place in the window of its first member
    uint64_t late_bytes = 0;              ///< of operands that others have made since then
  };

  struct VarState {
    run::StorageVar* var;
    uint32_t parent;         ///< index of a state, in the forest of components; its own: a root
    uint32_t used_by = 0;    ///< a bit for each open group
    size_t written_at = 0;   ///< place in the window of the last node that writes it
    uint16_t slots[kSlots];  ///< its place among that group's vars
  };

  Batch divide(Batch nodes, bool only_plans);
  bool is_open(size_t open) const { return (open_now_ >> open & 1) != 0; }
  VarState& state(run::StorageVar& var);
  int slot_in(size_t open, run::StorageVar& var);
  bool conflicts(size_t open, const run::Node& node);
  void note_writes(const run::Node& node);
  void close_those_in_conflict(const run::Node& node, size_t but);
  bool is_done_by_row(size_t open, const Candidate& candidate);
  bool fits(size_t open, const Candidate& candidate);
  void describe_all(const Batch& nodes);
  void connect(const Candidate& candidate);
  uint32_t component_of(const Candidate& candidate);
  uint32_t representative(uint32_t state);
  bool may_grow_by(size_t open, const Candidate& candidate);
  uint64_t late_bytes(size_t open, const Candidate& candidate);
  bool may_run_twice(size_t open, const Candidate& candidate);
  bool fits(size_t open, run::StorageVar& var, const Mapping& mapping, bool writes);
  size_t place_for(const Candidate& candidate);
  void join(size_t open, const Candidate& candidate, Ref<engine::Op> node);
  void open_group(size_t open);
  bool fits_lists(const run::Node& node, int64_t length);
  size_t special_place(const run::Node& node);
  void add_by_hand(size_t open, Ref<engine::Op> node);
  void note_places(const run::Node& node, int64_t length);
  uint16_t add_var(size_t open, run::StorageVar& var, const Mapping& mapping);
  int16_t add_value(size_t open, run::Value& value, const Mapping& mapping);
  void close(size_t open);

  std::array<Open, kSlots> open_;
  uint32_t open_now_ = 0;  // a bit for each
  std::vector<VarState> states_;
  std::vector<Candidate> candidates_;  // of each node of the window
  size_t at_ = 0;                      // place in the window
  uint32_t last_serial_ = 0;
  uint64_t clock_ = 0;
  bool only_plans_ = false;
  uint64_t spared_ = 0;
  Batch out_;
};

}  // namespace lazyeng::fuse
