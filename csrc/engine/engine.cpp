// csrc/engine/engine.cpp: run-ahead accounting and counters, common to all engines.
#include "csrc/engine/engine.h"

#include "csrc/engine/dependency_tracker.h"

namespace lazyeng::engine {

GuestScope::GuestScope(Engine& engine) : engine_(engine.begin_visit() ? &engine : nullptr) {}

GuestScope::~GuestScope() {
  if (engine_) engine_->end_visit();
}

void Engine::fail_unpushed(const Op& op, const FailurePtr& failure) noexcept {
  DependencyTracker::fail_unpushed(op, failure);
}

void Engine::admit(uint64_t bytes) noexcept {
  admitted_ops_.fetch_add(1, std::memory_order_relaxed);
  if (bytes) admitted_bytes_.fetch_add(bytes, std::memory_order_relaxed);
}

void Engine::release(uint64_t ops, uint64_t bytes) noexcept {
  if (bytes) released_bytes_.fetch_add(bytes, std::memory_order_release);
  released_ops_.fetch_add(ops, std::memory_order_seq_cst);
}

Engine::Pending Engine::pending() const noexcept {
  // Released first: an op's admission happens before its release, so that admitted, read later, is
  // never the smaller of the two.
  const uint64_t ops = released_ops_.load(std::memory_order_seq_cst);
  const uint64_t bytes = released_bytes_.load(std::memory_order_acquire);
  return {admitted_ops_.load(std::memory_order_relaxed) - ops,
          admitted_bytes_.load(std::memory_order_relaxed) - bytes};
}

bool Engine::above_limits() const noexcept {
  const Pending now = pending();
  return now.ops > max_ops_.load(std::memory_order_relaxed) ||
         now.bytes > max_bytes_.load(std::memory_order_relaxed);
}

bool Engine::within_half_limits() const noexcept {
  const Pending now = pending();
  return now.ops <= max_ops_.load(std::memory_order_relaxed) / 2 &&
         now.bytes <= max_bytes_.load(std::memory_order_relaxed) / 2;
}

void Engine::set_limits(Limits limits) noexcept {
  max_ops_.store(limits.max_pending_ops, std::memory_order_relaxed);
  max_bytes_.store(limits.max_pending_bytes, std::memory_order_relaxed);
}

Limits Engine::limits() const noexcept {
  return {max_ops_.load(std::memory_order_relaxed), max_bytes_.load(std::memory_order_relaxed)};
}

Counters Engine::counters() const noexcept {
  Counters counters;
  const Pending now = pending();
  counters.pending_ops = now.ops;
  counters.pending_bytes = now.bytes;
  counters.executed = executed_.load(std::memory_order_relaxed);
  counters.skipped = skipped_.load(std::memory_order_relaxed);
  counters.pushed = pushed_.load(std::memory_order_relaxed);
  return counters;
}

}  // namespace lazyeng::engine
