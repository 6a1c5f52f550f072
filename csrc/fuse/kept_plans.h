// csrc/fuse/kept_plans.h: a bounded table of plans, by the hash of their words.
//
// When it is full, a new plan takes the place of those that have not been asked for the longest, if
// they come back more seldom than it does: a plan that came back after n others replaces what
// nobody has asked for in twice as many. So a new loop takes the room of one that is over, at once;
// and a loop with more windows than there is room for replays as many as there is room for. (If the
// oldest always made room, it would replay none: each would be gone when it comes again.)
//
// Not thread safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <list>
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
    ++asked_;
    const auto found = places_.find(hash);
    if (found == places_.end()) return nullptr;
    entries_.splice(entries_.end(), entries_, found->second);
    found->second->asked = asked_;
    return found->second->plan.get();
  }
  /// How often anybody has asked for a plan.
  uint64_t asked() const { return asked_; }

  /// Takes the place of one with the same hash. Kept only if there is room. `after`: how many plans
  /// were asked for between this one and the time before.
  void keep(uint64_t hash, size_t size, std::unique_ptr<Plan> plan, uint64_t after) {
    if (const auto found = places_.find(hash); found != places_.end()) drop(found->second);
    if (size > room_) return;
    while (size > room_ - taken_ && asked_ - entries_.front().asked > 2 * after)
      drop(entries_.begin());
    if (size > room_ - taken_) return;
    entries_.push_back({hash, size, asked_, std::move(plan)});
    places_.emplace(hash, std::prev(entries_.end()));
    taken_ += size;
  }

  void clear() {
    places_.clear();
    entries_.clear();
    taken_ = 0;
  }

 private:
  struct Entry {
    uint64_t hash;
    size_t size;
    uint64_t asked;  // asked_ when it was asked for last
    std::unique_ptr<Plan> plan;
  };
  using Entries = std::list<Entry>;

  void drop(typename Entries::iterator entry) {
    taken_ -= entry->size;
    places_.erase(entry->hash);
    entries_.erase(entry);
  }

  const size_t room_;
  size_t taken_ = 0;
  uint64_t asked_ = 0;
  Entries entries_;  // what was asked for last is last
  std::unordered_map<uint64_t, typename Entries::iterator> places_;
};

}  // namespace lazyeng::fuse
