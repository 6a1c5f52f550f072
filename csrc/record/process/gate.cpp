// csrc/record/process/gate.cpp: slots of threads; closing and opening.
#include "csrc/record/process/gate.h"

#include <c10/util/Exception.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

#include "csrc/run/python_ref.h"

namespace lazyeng::record {

std::atomic<Gate::State> Gate::state_{State::open};
std::atomic<Gate::Slot*> Gate::slots_{nullptr};
thread_local constinit Gate::Slot* Gate::own_ = nullptr;
thread_local constinit bool Gate::closed_by_us_ = false;

#if defined(__SANITIZE_THREAD__)  // which does not know of membarrier
const bool Gate::has_membarrier_ = false;
#else
const bool Gate::has_membarrier_ = Gate::membarrier();
#endif

/// A barrier on every running thread of the process. False: the kernel has none.
bool Gate::membarrier() noexcept {
  const auto call = [](int command) { return syscall(SYS_membarrier, command, 0, 0) == 0; };
  // A process says once that it is going to use it; a child of fork has to say it again.
  return call(MEMBARRIER_CMD_PRIVATE_EXPEDITED) ||
         (call(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) &&
          call(MEMBARRIER_CMD_PRIVATE_EXPEDITED));
}

Gate::Slot& Gate::make_slot() {
  /// Gives the slot back when its thread ends.
  struct Owner {
    Slot* slot = nullptr;
    ~Owner() {
      if (!slot) return;
      own_ = nullptr;
      slot->taken.store(false, std::memory_order_release);
    }
  };
  static thread_local Owner owner;
  Slot* slot = slots_.load(std::memory_order_acquire);
  while (slot && slot->taken.exchange(true, std::memory_order_acquire)) slot = slot->next;
  if (!slot) {
    slot = new Slot;
    slot->next = slots_.load(std::memory_order_relaxed);
    while (!slots_.compare_exchange_weak(slot->next, slot, std::memory_order_seq_cst)) {
    }
  }
  slot->exempt = false;
  own_ = owner.slot = slot;
  return *slot;
}

bool Gate::is_inside() noexcept {
  return own_ && (own_->exempt || own_->depth.load(std::memory_order_relaxed) != 0);
}

void Gate::exempt_this_thread() { (own_ ? *own_ : make_slot()).exempt = true; }

void Gate::wait_outside(Slot& slot, uint32_t outer_scopes) {
  while (state_.load(std::memory_order_seq_cst) != State::open) {
    if (!is_lost() && (outer_scopes != 0 || slot.exempt || closed_by_us_)) return;
    slot.depth.store(outer_scopes, std::memory_order_release);
    TORCH_CHECK(!is_lost(),
                "lazyeng: this process was forked from within an operation of lazyeng, or not by "
                "os.fork(): it has no engine and can neither record nor wait");
    {
      const run::NoGil released;
      wait_until_open();
    }
    enter(slot, 1);
  }
}

void Gate::wait_until_open() { state_.wait(State::closed, std::memory_order_acquire); }

bool Gate::others_are_outside() noexcept {
  for (Slot* slot = slots_.load(std::memory_order_seq_cst); slot; slot = slot->next)
    if (slot != own_ && slot->depth.load(std::memory_order_seq_cst) != 0) return false;
  return true;
}

bool Gate::close(std::chrono::milliseconds patience) {
  constexpr auto kLookEvery = std::chrono::microseconds(50);  // an op takes a few microseconds
  State expected = State::open;
  while (!state_.compare_exchange_strong(expected, State::closed, std::memory_order_seq_cst)) {
    wait_until_open();
    expected = State::open;
  }
  closed_by_us_ = true;
  if (has_membarrier_) membarrier();
  const auto until = std::chrono::steady_clock::now() + patience;
  while (!others_are_outside()) {
    if (std::chrono::steady_clock::now() > until) return open(), false;
    std::this_thread::sleep_for(kLookEvery);
  }
  return true;
}

void Gate::open() noexcept {
  closed_by_us_ = false;
  state_.store(State::open, std::memory_order_seq_cst);
  state_.notify_all();
}

void Gate::after_fork_in_child() noexcept {
  // The other slots' threads do not exist here. All are outside, except if the gate is lost.
  state_.store(closed_by_us_ ? State::open : State::lost, std::memory_order_seq_cst);
  closed_by_us_ = false;
}

}  // namespace lazyeng::record
