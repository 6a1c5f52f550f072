// csrc/record/metadata/infer.h: what an op will return, known without running it.
//
// A plan is looked up by everything that can decide it: op, looks of the tensors (but for their
// offsets, with few exceptions), sizes and options among the scalars. On a miss the op is asked in
// this order: its C++ structured meta function; its kernel, on one element, if that tells enough
// (csrc/record/metadata/one_element.h), or on small stand-ins (csrc/record/metadata/stand_ins.h),
// or on smaller ones than the arguments (csrc/record/metadata/smaller.h); its meta kernel (perhaps
// Python), once some calls of this kind were run and agreed with it; and last a real run from which
// the plan is learned. (If that fails: csrc/record/metadata/failed_first_call.h.) Each plan is
// verified when the op runs (csrc/run/executor.cpp).
#pragma once

#include "csrc/engine/spin_lock.h"
#include "csrc/record/call.h"
#include "csrc/run/doubts.h"

namespace lazyeng::record {

struct OutputPlan {
  enum class Kind : uint8_t { fresh, view, undefined };
  Kind kind = Kind::fresh;
  uint32_t of = 0;  ///< view: of which tensor argument
  run::GeometryRef geometry;
  int64_t seen_at = 0;  ///< view: the offset of that argument when the plan was made

  /// What the result of a call looks like. (Plans are shared by arguments of other offsets.)
  run::GeometryRef look(int64_t offset_of_argument) const {
    return kind == Kind::view
               ? run::with_offset(geometry, geometry->offset() - seen_at + offset_of_argument)
               : geometry;
  }
};

/// Immutable, shared by all calls that look the same.
class CallPlan final : public RefCounted {
  static inline std::atomic<uint64_t> made_{0};

 public:
  const uint64_t id = made_.fetch_add(1, std::memory_order_relaxed) + 1;
  /// The op must be run to know what it returns, every time.
  bool must_run = false;
  std::vector<OutputPlan> outputs;    ///< lists flattened; written arguments left out
  std::vector<int64_t> list_lengths;  ///< of each returned list, in order
  std::vector<int64_t> numbers;       ///< that it returns beside tensors, in order
  struct Rewrite {
    uint32_t tensor;
    run::GeometryRef after;
  };
  std::vector<Rewrite> rewrites;  ///< written arguments whose metadata changes
  bool only_metadata = false;     ///< nothing to run: views, or metadata moved in place
  bool small = false;             ///< its tensors are so small that most kernels are soon done
  bool fans_out = false;          ///< its kernel may start helpers all the same
  Ref<run::Width> width;          ///< null: it is small, and does not fan out
  run::DoubtedKind kind = 0;      ///< that its calls are of
  uint32_t stamp = 0;             ///< of the kind's doubts, when it was made

  bool holds() const { return kind == 0 || run::doubts_stamp(kind) == stamp; }
};
using CallPlanRef = Ref<const CallPlan>;

/// False: torch.use_deterministic_algorithms(True) has kernels refuse what they cannot do so.
bool may_be_nondeterministic();

/// The words that decide a plan.
using PlanKey = c10::SmallVector<uint64_t, 24>;

/// False if some argument is of a kind that cannot be a key.
bool make_key(const Call& call, PlanKey& key);
/// The same without sizes and strides: dtypes and ranks, and all that is no tensor.
bool make_kind_key(const Call& call, PlanKey& key);
uint64_t hash_of(const PlanKey& key);

class PlanCache {
 public:
  CallPlanRef find(const PlanKey& key) const;
  void insert(const PlanKey& key, const Call& call, CallPlanRef plan);

 private:
  struct Entry {
    PlanKey key;
    uint64_t hash = 0;
    c10::SmallVector<run::GeometryRef, 4> looks;  // the key holds their addresses, or origins'
    CallPlanRef plan;
  };
  using Table = std::vector<std::unique_ptr<Entry>>;  // open addressing, at most half full

  Entry* find_locked(const PlanKey& key, uint64_t hash) const;
  void put_locked(std::unique_ptr<Entry> entry);
  void grow_locked();

  mutable engine::SpinLock mutex_;
  Table table_;
  size_t size_ = 0;
};

/// Asks all but the run. Null: only a run can tell (nobody could be asked, or who was asked raised;
/// what that raised is not kept, since the run will raise eager's own message).
CallPlanRef infer(const Call& call);

/// The plan that a run taught. Null if it cannot be relied on.
CallPlanRef learn(const Call& call, const run::Node::Discovery& found);

/// Counts runs, and after a few notes whether the op's meta function would have said what this one
/// has shown: until then, and if not, infer() does not ask it.
void compare_with_meta(const Call& call, const run::Node::Discovery& found);
/// Whether the structured meta function says what the run has found. (The call may have run at once
/// for another reason: a setting under which the kernel may refuse it.)
bool structured_meta_agrees(const Call& call, const run::Node::Discovery& found);

/// After what was recorded so far: may the call, which is of a new kind, join groups?
void want_trials(const Call& call, uint64_t number);

}  // namespace lazyeng::record
