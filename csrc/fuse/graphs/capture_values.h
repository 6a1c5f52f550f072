// csrc/fuse/graphs/capture_values.h: what a segment's ops read and write while they are captured.
//
// Results, and inputs that are to be copied, have vars and values of their own then: so nothing is
// installed in those that others know, and they may fail to be captured without a trace.
#pragma once

#include <vector>

#include "csrc/fuse/graphs/observation.h"

namespace lazyeng::fuse {

class CaptureValues {
 public:
  /// From then on the ops launch into a capture on that stream, until this dies. Allocates memory
  /// for inputs that are `copied`; results that are `kept` keep theirs.
  CaptureValues(Segment& segment, const Observation& seen, const std::vector<bool>& copied,
                std::vector<bool> kept, const c10::Stream& stream);
  ~CaptureValues();
  CaptureValues(const CaptureValues&) = delete;
  CaptureValues& operator=(const CaptureValues&) = delete;

  enum class Captured { all, not_one, none };
  /// Runs all ops, and counts those that were captured. not_one: the next one failed, and is to
  /// blame; none: there may be no memory.
  Captured capture_ops(size_t& captured);
  /// Of each var that is copied or kept, where; null for others.
  std::vector<c10::Storage> memory() const;

 private:
  void set_up(const Observation& seen, const std::vector<bool>& copied, const c10::Stream& stream);
  void put_back() noexcept;
  void stand_in(size_t place, const run::StorageVar& var, bool copied);
  run::ValueRef stand_in_for(const run::ValueRef& value);
  void exchange_values();
  void exchange_in(Group& group);
  void let_go_of(size_t op);

  Segment& segment_;
  // Of each var, in the order of the claims:
  std::vector<bool> kept_;                 // it is copied, or kept
  std::vector<run::StorageVarRef> vars_;   // null: the var is used itself
  std::vector<run::StorageVarRef> holds_;  // so that ops see that somebody wants these
  std::vector<uint32_t> last_use_;         // the op after which no other needs it
  std::vector<std::vector<run::Value*>> values_of_;
  std::unordered_map<const engine::Var*, size_t> places_;
  std::unordered_map<const run::Value*, run::Value*> values_;  // (the ops own the new ones)

  struct Exchanged {
    run::ValueRef* at;
    run::ValueRef original;
  };
  struct ExchangedInGroup {
    Group* group;
    std::vector<GroupValue> values;
    std::vector<GroupVar> vars;
  };
  std::vector<Exchanged> exchanged_;
  std::vector<ExchangedInGroup> groups_;
};

}  // namespace lazyeng::fuse
