// csrc/run/traces/torch_profiler.cpp: joining and leaving a profile of torch's.
#include "csrc/run/traces/torch_profiler.h"

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <chrono>
#include <memory>
#include <thread>

namespace lazyeng::run {

struct SeenByTorchProfiler::Keeps {
  at::RecordFunctionTLS callbacks;
  std::shared_ptr<c10::ThreadLocalDebugInfo> state;

  void apply() const {
    at::set_record_function_tls_(callbacks);
    c10::ThreadLocalDebugInfo::_forceCurrentDebugInfo(state);
  }
};

namespace {

std::atomic<unsigned> inside{0};
/// Of the thread that profiles: an owning pointer to Keeps. Replaced while nobody is inside.
std::shared_ptr<const void> profiling;

bool waits_for_nobody(const engine::Op& op) {
  return op.queue == engine::QueueId::cpu || op.queue >= engine::QueueId::first_device;
}

bool is_seen() {
  return c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE) != nullptr;
}

}  // namespace

SeenByTorchProfiler::Keeps SeenByTorchProfiler::of_this_thread() {
  return {at::get_record_function_tls_(), c10::ThreadLocalDebugInfo::current()};
}

// Dekker with keep_threads_out_of_profile: we announce ourselves, then look whether we may; it says
// no, then looks who is inside.
void SeenByTorchProfiler::join(const engine::Op& op) noexcept {
  if (!waits_for_nobody(op) || is_seen()) return;
  inside.fetch_add(1, std::memory_order_seq_cst);
  if (!detail::torch_profiles.load(std::memory_order_seq_cst)) {
    inside.fetch_sub(1, std::memory_order_seq_cst);
    return;
  }
  before_ = new Keeps(of_this_thread());
  static_cast<const Keeps*>(profiling.get())->apply();
}

void SeenByTorchProfiler::leave() noexcept {
  before_->apply();
  delete before_;
  inside.fetch_sub(1, std::memory_order_seq_cst);
}

void let_threads_join_profile() {
  keep_threads_out_of_profile();  // of another thread's: torch has one at a time
  profiling =
      std::make_shared<const SeenByTorchProfiler::Keeps>(SeenByTorchProfiler::of_this_thread());
  detail::torch_profiles.store(true, std::memory_order_seq_cst);
}

void keep_threads_out_of_profile() {
  constexpr auto kLookEvery = std::chrono::microseconds(50);
  detail::torch_profiles.store(false, std::memory_order_seq_cst);
  while (inside.load(std::memory_order_seq_cst) != 0) std::this_thread::sleep_for(kLookEvery);
  profiling = nullptr;
}

}  // namespace lazyeng::run
