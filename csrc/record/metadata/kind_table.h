// csrc/record/metadata/kind_table.h: what was found out about calls of a kind (dtypes, ranks, and
// all that is no tensor).
#pragma once

#include <mutex>
#include <optional>
#include <unordered_map>

#include "csrc/record/metadata/infer.h"

namespace lazyeng::record {

/// Any thread. Never destroyed: make it with new.
template <class Finding>
class KindTable {
 public:
  std::optional<Finding> find(const PlanKey& kind) {
    std::lock_guard lock(mutex_);
    const auto known = known_.find(kind);
    return known == known_.end() ? std::nullopt : std::optional(known->second);
  }

  void note(const PlanKey& kind, Finding finding) {
    std::lock_guard lock(mutex_);
    if (known_.size() >= kMax) known_.clear();
    known_.insert_or_assign(kind, finding);
  }

 private:
  static constexpr size_t kMax = 1 << 14;
  struct Hash {
    size_t operator()(const PlanKey& key) const { return hash_of(key); }
  };

  std::mutex mutex_;
  std::unordered_map<PlanKey, Finding, Hash> known_;
};

}  // namespace lazyeng::record
