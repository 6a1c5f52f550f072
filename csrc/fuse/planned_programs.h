// csrc/fuse/planned_programs.h: the programs that a group of a step plan has run as.
//
// They differ in which results are needed. Any thread, without locks (a process may fork
// meanwhile): entries are added in front and stay until the step plan and its groups are gone.
#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

namespace lazyeng::fuse {

struct GroupPlan;

class PlannedPrograms {
 public:
  using GroupPlanRef = std::shared_ptr<const GroupPlan>;

  PlannedPrograms() = default;
  PlannedPrograms(const PlannedPrograms&) = delete;
  PlannedPrograms& operator=(const PlannedPrograms&) = delete;
  ~PlannedPrograms() {
    for (const Entry* entry = first_.load(); entry;) delete std::exchange(entry, entry->next);
  }

  /// Null: none yet.
  GroupPlanRef find(const std::vector<bool>& needed) const {
    for (const Entry* entry = first_.load(std::memory_order_acquire); entry; entry = entry->next)
      if (entry->needed == needed) return entry->plan;
    return nullptr;
  }

  /// (Two threads may add the same; a group that is needed in ever new ways is looked up by key.)
  void add(const std::vector<bool>& needed, GroupPlanRef plan) {
    const Entry* next = first_.load(std::memory_order_acquire);
    if (next && next->count >= kMost) return;
    auto* entry = new Entry{needed, std::move(plan), next, next ? next->count + 1 : 1};
    while (!first_.compare_exchange_weak(next, entry, std::memory_order_release,
                                         std::memory_order_acquire)) {
      entry->next = next;
      entry->count = next->count + 1;
    }
  }

 private:
  static constexpr int kMost = 8;
  struct Entry {
    std::vector<bool> needed;
    GroupPlanRef plan;
    const Entry* next;
    int count;
  };
  std::atomic<const Entry*> first_{nullptr};
};

}  // namespace lazyeng::fuse
