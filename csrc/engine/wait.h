// csrc/engine/wait.h: how a thread waits for the engine and leaves again.
//
// Thread safety: all functions may be called from any thread, except where noted.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>

#include "csrc/engine/guest.h"
#include "csrc/engine/ref.h"

namespace lazyeng::engine {

/// Polled on the waiting thread when a wait has lasted some 2 ms, and then about every 20 ms,
/// without any engine lock held; true ends the wait.
using Interrupt = std::function<bool()>;

enum class WaitResult : uint8_t { done, interrupted };

/// A count of events: a thread notes the count, checks its condition, and waits for the count to
/// move. Whoever makes a condition true notifies afterwards.
///
/// No lost wakeup: the waiter reads the count before it checks the condition. If the check comes
/// too early to see the change, then the notification comes after the read and moves the count away
/// from what was read, so the waiter does not sleep on it. (Sleeping itself: see notify.)
class EventCount {
 public:
  static constexpr auto kSpin = std::chrono::microseconds(20);  // cheaper than sleep and wake-up

  void notify() noexcept;

  /// Returns when done() holds. done() runs on this thread, without the event's lock. A `guest` has
  /// arrived; it makes itself useful meanwhile.
  template <class Done>
  WaitResult await(Done done, const Interrupt& interrupt, Guest* guest = nullptr) {
    auto next_poll = Clock::now() + kFirstPoll;
    for (;;) {
      const uint32_t seen = events_.load(std::memory_order_seq_cst);
      if (done()) return WaitResult::done;
      if (!guest || !guest->run_one()) wait_for_news(seen, next_poll, guest);
      const auto now = Clock::now();
      if (now < next_poll) continue;
      next_poll = now + kPoll;
      if (interrupt && ask(interrupt, guest)) return WaitResult::interrupted;
    }
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr auto kFirstPoll = std::chrono::milliseconds(2);
  static constexpr auto kPoll = std::chrono::milliseconds(20);

  /// Returns when the count is no longer `seen`, when the guest may have something to do, or at
  /// `latest`.
  void wait_for_news(uint32_t seen, Clock::time_point latest, Guest* guest);
  void sleep(uint32_t seen, Clock::time_point latest);
  static bool ask(const Interrupt& interrupt, Guest* guest);

  std::atomic<uint32_t> events_{0};
  std::atomic<uint32_t> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable moved_;
};

/// What one waiting thread shares with the ops that it waits for. Each of these holds a reference,
/// so a thread may leave early: the object stays until the last var has let go of it.
class Waiter : public RefCounted {
 public:
  explicit Waiter(uint32_t signals) : missing_(signals) {}

  /// One of the things waited for has come. False if the waiting thread has left (abandon).
  bool signal() noexcept;
  /// Returns when all have come. Only for the thread that made the waiter.
  WaitResult wait(const Interrupt& interrupt, Guest* guest = nullptr);
  /// Leaves for good; false if everything has come after all. Decides the race with signal().
  bool abandon() noexcept;

 private:
  static constexpr uint32_t kAbandoned = uint32_t{1} << 31;

  std::atomic<uint32_t> missing_;  // signals to come, and kAbandoned
  EventCount all_came_;
};

}  // namespace lazyeng::engine
