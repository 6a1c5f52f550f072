// csrc/engine/wait.cpp: spin briefly, then sleep in slices so that interrupts are seen.
#include "csrc/engine/wait.h"

#include "csrc/engine/pause.h"

namespace lazyeng::engine {

void EventCount::notify() noexcept {
  events_.fetch_add(1, std::memory_order_seq_cst);
  // Dekker: we write events_, then read sleepers_; a sleeper writes sleepers_, then reads events_.
  // In the single total order of these four one of the reads sees the other's write: either we see
  // the sleeper and wake it, or it sees the new count and does not sleep.
  if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
  // A sleeper holds the lock from its check to its sleep: taking it puts us after both.
  { std::lock_guard lock(mutex_); }
  moved_.notify_all();
}

void EventCount::wait_for_news(uint32_t seen, Clock::time_point latest, Guest* guest) {
  const auto over = [&] {
    return events_.load(std::memory_order_acquire) != seen || (guest && guest->has_one());
  };
  if (spin_until(over, guest ? guest->patience() : kSpin)) return;
  if (!guest) return sleep(seen, latest);
  if (guest->sleeps(*this)) sleep(seen, latest);
  guest->wakes(*this);
}

bool EventCount::ask(const Interrupt& interrupt, Guest* guest) {
  void* const here = guest ? guest->go_away() : nullptr;
  const bool leaves = interrupt();
  if (guest) guest->come_back(here);
  return leaves;
}

void EventCount::sleep(uint32_t seen, Clock::time_point latest) {
  std::unique_lock lock(mutex_);
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  moved_.wait_until(lock, latest, [&] { return events_.load(std::memory_order_seq_cst) != seen; });
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

bool Waiter::signal() noexcept {
  const uint32_t before = missing_.fetch_sub(1, std::memory_order_acq_rel);
  if (before & kAbandoned) return false;
  if (before == 1) all_came_.notify();
  return true;
}

WaitResult Waiter::wait(const Interrupt& interrupt, Guest* guest) {
  return all_came_.await([this] { return missing_.load(std::memory_order_acquire) == 0; },
                         interrupt, guest);
}

bool Waiter::abandon() noexcept {
  uint32_t seen = missing_.load(std::memory_order_acquire);
  while (seen != 0)
    if (missing_.compare_exchange_weak(seen, seen | kAbandoned, std::memory_order_acq_rel))
      return true;
  return false;
}

}  // namespace lazyeng::engine
