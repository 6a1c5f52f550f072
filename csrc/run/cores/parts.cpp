// csrc/run/cores/parts.cpp: what a kernel needs of the thread that does a part of it.
#include "csrc/run/cores/parts.h"

#include <exception>
#include <mutex>

#include "csrc/engine/engine.h"
#include "csrc/run/cores/openmp_team.h"
#include "csrc/run/cores/width.h"
#include "csrc/run/unseen.h"

namespace lazyeng::run {
namespace {

std::atomic<engine::Engine*> engine_of_parts{nullptr};
std::atomic<uint64_t> in_parts{0};
std::atomic<bool> always{false};

}  // namespace

void set_parts_engine(engine::Engine* engine) {
  engine_of_parts.store(engine, std::memory_order_release);
}

void set_always_in_parts(bool in_parts) { always.store(in_parts, std::memory_order_relaxed); }
bool always_in_parts() { return always.load(std::memory_order_relaxed); }

bool engine_rests() {
  const engine::Engine* const engine = engine_of_parts.load(std::memory_order_acquire);
  return !engine || engine->rests();
}

unsigned engine_workers() {
  const engine::Engine* const engine = engine_of_parts.load(std::memory_order_acquire);
  return engine ? engine->num_workers() : 0;
}

bool parts_pay(double microseconds, int threads) {
  if (threads < 2) return false;
  if (always_in_parts()) return true;
  if (microseconds < kWorthParts) return false;
  // (Helpers of OpenMP that may spin have the cores that the parts would be done on.)
  if (!openmp_helpers().sleep() || openmp_helpers().is_crowded()) return false;
  const engine::Engine* const engine = engine_of_parts.load(std::memory_order_acquire);
  return engine && engine->num_free() + 1 >= static_cast<unsigned>(threads);
}

void run_in_parts(int count, ThreadSettings settings, const std::function<void(int)>& part) {
  in_parts.fetch_add(1, std::memory_order_relaxed);
  std::mutex mutex;
  std::exception_ptr thrown;
  engine_of_parts.load(std::memory_order_acquire)
      ->run_in_parts(static_cast<unsigned>(count), [&](unsigned i) noexcept {
        try {
          settings.apply();
          const Unseen unseen;
          const OneCore one(settings.num_threads);
          part(static_cast<int>(i));
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (!thrown) thrown = std::current_exception();
        }
      });
  if (thrown) std::rethrow_exception(thrown);
}

uint64_t ops_in_parts() { return in_parts.load(std::memory_order_relaxed); }

}  // namespace lazyeng::run
