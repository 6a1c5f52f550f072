// csrc/fuse/kept_plans.h: a bounded table of plans, by the hash of their words.
//
// When it is full, plans that nobody has asked for lately make room; if all are in use, a new one
// is not kept. So a loop with more windows than there is room for replays as many as there is room
// for: giving up the oldest would leave it none, as each is gone when it comes again.
//
// Not thread safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <unordered_map>
#include <utility>

namespace lazyeng::fuse {

template <class Plan>
class KeptPlans {
 public:
  /// `room`: for the sizes of all plans.
  explicit KeptPlans(size_t room) : room_(room) {}

  /// Null: there is none.
  Plan* find(uint64_t hash) {
    const auto found = entries_.find(hash);
    if (found == entries_.end()) return nullptr;
    found->second.used = true;
    return found->second.plan.get();
  }

  /// Takes the place of one with the same hash. Kept only if there is room.
  void keep(uint64_t hash, size_t size, std::unique_ptr<Plan> plan) {
    drop(hash);
    if (size > room_ - taken_) drop_unused();
    if (size > room_ - taken_) return;
    entries_.insert_or_assign(hash, Entry{std::move(plan), size, false});
    taken_ += size;
  }

  void clear() {
    entries_.clear();
    taken_ = refused_ = 0;
  }

 private:
  struct Entry {
    std::unique_ptr<Plan> plan;
    size_t size;
    bool used;  // since plans were last dropped
  };

  void drop(uint64_t hash) {
    const auto found = entries_.find(hash);
    if (found == entries_.end()) return;
    taken_ -= found->second.size;
    entries_.erase(found);
  }

  /// Not each time, as it goes over all: between two of these a plan has time to be used.
  void drop_unused() {
    if (++refused_ <= entries_.size()) return;
    refused_ = 0;
    for (auto entry = entries_.begin(); entry != entries_.end();) {
      const bool used = std::exchange(entry->second.used, false);
      if (!used) taken_ -= entry->second.size;
      entry = used ? std::next(entry) : entries_.erase(entry);
    }
  }

  const size_t room_;
  size_t taken_ = 0;
  size_t refused_ = 0;  // since plans were last dropped
  std::unordered_map<uint64_t, Entry> entries_;
};

}  // namespace lazyeng::fuse
