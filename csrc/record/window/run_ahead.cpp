// csrc/record/window/run_ahead.cpp: how far recording may be ahead of the engine.
#include "csrc/fuse/bits/trials.h"
#include "csrc/record/device/device_bounds.h"
#include "csrc/record/process/gate.h"
#include "csrc/record/recorder.h"
#include "csrc/record/sync_debug.h"
#include "csrc/run/python_ref.h"
#include "csrc/run/unseen.h"

namespace lazyeng::record {
namespace {

constexpr uint64_t kLookEvery = 8;
constexpr uint64_t kLookAtBytes = 1 << 12;

}  // namespace

/// Of ops that join groups if they give eager's bits (csrc/fuse/bits/trials.h).
void Recorder::run_due_trials(uint64_t number) {
  if (!fuse::trials_are_due(number) || !window_.fuses()) return;
  const run::NoGil released;
  const Gate::Inside inside;
  const run::Unseen unseen;
  fuse::run_trials(number);
}

void Recorder::throttle(const run::Node& node) {
  // What is pending stands in a cache line that the workers write: small ops look now and then.
  if (node.number % kLookEvery != 0 && node.cost_now() < kLookAtBytes) return;
  run_due_trials(node.number);
  if (!node.device.is_cpu()) bound_by_memory_of(node.device, *engine_);
  if (!engine_->above_limits() || pusher_.fits_when_fused()) return;
  WaitScope waits("more is recorded and not run than the bounds of run-ahead allow");
  if (waits.wanted()) waits.begin(node.info.torch_name);
  const bool async = thread_mode().mode == Mode::async;
  pusher_.flush_for_room(async);
  const Pusher::WaitsForRoom waiting(pusher_);
  wait_until_done([&](const engine::Interrupt& interrupt) {
    return engine_->wait_below_limits([&] {
      // (Other threads' deferred nodes count, too, and nobody fetches those from the window.)
      pusher_.flush_for_room(async);
      return interrupt();
    });
  });
  waits.report();
}

}  // namespace lazyeng::record
