// csrc/fuse/group.h: several recorded calls that run as one op of the engine.
//
// A group claims what its members claim. It runs as a tile program if it can: results that nobody
// holds any more when it runs are not written to memory. Otherwise (an input has failed, a plain
// tensor was changed behind a read, no kernel for a dtype, no memory) its members run one by one in
// the order of recording, each with its own outcome: a failure is that of the member that failed,
// and of those that read what it should have made.
//
// Built under the lock of pushes, run by one engine thread, which alone changes it once it is
// pushed (outcomes_), except for a capture, as with nodes (csrc/run/node.h).
#pragma once

#include <atomic>
#include <chrono>

#include "csrc/fuse/graphs/outcomes.h"
#include "csrc/fuse/tiles/tile_program.h"
#include "csrc/run/node.h"

namespace lazyeng::fuse {

struct Member {
  Ref<run::Node> node;
  /// The value of each tensor argument; kNone for numbers and undefined tensors.
  c10::SmallVector<int16_t, 4> operands;
  c10::SmallVector<int16_t, 1> results;  ///< that it makes, or the one it writes; kNone: left out
};
inline constexpr int16_t kNone = -1;

/// A tensor that members read or write, over one of the group's vars. The members keep it alive.
struct GroupValue {
  run::Value* value;
  uint16_t var;
  uint32_t references;  ///< held by members
};

struct GroupVar {
  run::StorageVar* var;
  bool fresh = false;       ///< made by a member
  bool written = false;     ///< by a member
  bool overwrites = false;  ///< the first claim on it, as Access::overwrites
  uint16_t values = 0;
};

class PlannedPrograms;
struct GroupPlan;
enum class Launched : uint8_t;

/// What a group goes over, and how it may run.
struct GroupTraits {
  int64_t numel = 0;
  int64_t row = 0;  ///< elements of a row that members reduce along; 0: none does
  Dims shape;
  bool in_shares = false;   ///< a member adds up torch's shares of the elements
  bool checked = false;     ///< if the program is not certain of its bits, the members run
  bool writes_old = false;  ///< what was there before the group: it runs only once
  bool by_hand = false;     ///< a pair, or a chain over lists (chosen_ops.h); there is no program
};

class Group final : public engine::Op, public GroupTraits, public engine::Pooled<Group> {
 public:
  ~Group() override;

  engine::FailurePtr run() noexcept override;
  const engine::FailurePtr& failure_of(const engine::Var& var,
                                       const engine::FailurePtr&) const noexcept override;

  /// To be called once all members are there, before the group is pushed. Returns by how many bytes
  /// it costs less than its members: results that nobody holds any more get no memory.
  uint64_t claim();
  /// Of a group that is part of a graph: its kernels, or its members' if it has none, are captured.
  /// False: that failed. Nothing counts, and nothing is settled.
  bool capture() noexcept;

  std::vector<Member> members;
  std::vector<GroupValue> values;
  std::vector<GroupVar> vars;
  std::shared_ptr<PlannedPrograms> programs;  ///< of its step plan; null: it has none
  bool claimed = false;  ///< it, or what it is part of, holds the one claim on each of its vars

 private:
  bool can_fuse() const;
  bool has_failed_forward() const noexcept;
  bool run_fused(const std::shared_ptr<const GroupPlan>& plan);
  bool run_tiles(const GroupPlan& plan);
  bool run_kernels(const std::shared_ptr<const GroupPlan>& plan);
  Launched launch_by_hand(std::exception_ptr& error) const;
  bool run_by_hand();
  bool run_planned();
  std::shared_ptr<const GroupPlan> plan_of_program() const;
  std::shared_ptr<const GroupPlan> trusted_plan() const noexcept;
  void settle_lost(const std::exception_ptr& error);
  bool is_trusted(const GroupPlan& plan) const;
  double microseconds_on_one_core(const Program& program) const;
  Cores cores_for(const Program& program) const;
  void note_time(const Program& program, Cores taken,
                 std::chrono::steady_clock::time_point begin) const;
  void note_unknown_members(const Program& program) const;
  bool is_soon_done() const;
  void trace(int64_t begin) const noexcept;
  void report_changed_inputs();
  void run_members() noexcept;
  std::vector<uint32_t> last_uses() const;

  Outcomes outcomes_;  // of members that ran one by one
};

/// Of each var, whether anybody but the group can still ask for its newest version: its memory must
/// be written. Also of a group that is only planned.
std::vector<bool> needed_vars(const Group& group);

/// Whether two values are the same elements of the same memory: of a plain tensor that several ops
/// were given, or of a view that was made twice.
inline bool same_elements(const GroupValue& a, const GroupValue& b) {
  return a.var == b.var && &a.value->geometry() == &b.value->geometry();
}

struct Stats {
  std::atomic<uint64_t> groups{0};   ///< run as programs
  std::atomic<uint64_t> members{0};  ///< ops in them
  std::atomic<uint64_t> by_hand{0};  ///< ops that hand-written kernels ran
};
Stats& stats();

/// Of a group that is not pushed yet, maybe only planned: results that nobody holds any more get no
/// memory, so they cost their members nothing. Returns how many bytes that takes off their costs.
uint64_t lower_costs(const Group& group);

/// Whether each group is reported on stderr, when it is known what has run it.
void set_logging(bool on);
bool logging();
void report_group(c10::ArrayRef<run::Node*> nodes, int64_t elements, uint64_t bytes_not_written,
                  const std::string& kernel);

}  // namespace lazyeng::fuse
