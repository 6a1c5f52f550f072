// csrc/engine/epoch.h: which pushed ops are complete, told apart by the waits between them.
//
// Each op belongs to the epoch in which it was pushed. wait_for_all closes the current epoch and
// waits until it and all earlier ones are complete, whatever is pushed meanwhile.
//
// Thread safety: EpochList is guarded by the push lock of its owner; count_completion is called by
// any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

namespace lazyeng::engine {

class Epoch {
 public:
  /// One op is complete. True if it was the last of a closed epoch: somebody may wait for that.
  ///
  /// Dekker: we write completed_, then read target_; close() writes target_, and the wait reads
  /// completed_ after it. So either we see the target or the waiter sees the completion.
  /// After the first line the epoch may be recycled: target_ is then that of a later life, and the
  /// answer a harmless spurious true, or a false that nobody needs. It is never freed.
  bool count_completion() noexcept {
    const uint64_t done = completed_.fetch_add(1, std::memory_order_seq_cst) + 1;
    return done == target_.load(std::memory_order_seq_cst);
  }

 private:
  friend class EpochList;
  static constexpr uint64_t kOpen = ~uint64_t{0};

  alignas(64) std::atomic<uint64_t> completed_{0};  // written by workers
  std::atomic<uint64_t> target_{kOpen};             // ops in the epoch, once it is closed
  alignas(64) uint64_t pushed_ = 0;                 // written by pushing threads
  uint64_t number_ = 0;
};

class EpochList {
 public:
  EpochList() { open_next(); }

  /// Counts `ops` more ops into the current epoch, which they must remember.
  Epoch* join(uint64_t ops) noexcept {
    current_->pushed_ += ops;
    return current_;
  }
  /// Ends the current epoch. Returns the number to ask is_complete for.
  uint64_t close();
  /// Whether every op of the epochs up to `number` is complete.
  bool is_complete(uint64_t number);

 private:
  void open_next();

  Epoch* current_ = nullptr;
  uint64_t last_number_ = 0;
  std::deque<Epoch*> closed_;  // oldest first; complete ones leave from the front
  std::vector<Epoch*> free_;
  std::vector<std::unique_ptr<Epoch>> all_;  // keeps them alive as long as the list
};

}  // namespace lazyeng::engine
