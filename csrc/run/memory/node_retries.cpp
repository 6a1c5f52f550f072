// csrc/run/memory/node_retries.cpp: nodes that lack memory run once more.
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "csrc/run/device/free_memory.h"
#include "csrc/run/device/launch_log.h"
#include "csrc/run/node.h"

namespace lazyeng::run {

/// An op that lacks memory runs again when the others have let go of theirs. Not one that writes
/// its arguments: it may have begun to.
bool Node::retry_for_memory() noexcept {
  if (host_copy.direction == HostCopy::Direction::to_device) return false;
  if (in_flight || (collective && collective->has_begun())) return false;
  lacked_memory_ = std::none_of(tensors.begin(), tensors.end(),
                                [](const TensorArg& arg) { return arg.written; }) &&
                   run_again_alone();
  return lacked_memory_;
}

/// Of a device: ops that are ready on other queues are about to free what this one lacks. So it
/// goes on while somebody launches something. (A copy to a device never lets the next ones go
/// first: they would take the memory, and be of no use to ops that wait for this one as well.)
void Node::execute_patiently() {
  constexpr auto kPatience = std::chrono::milliseconds(200);
  constexpr auto kTryEvery = std::chrono::milliseconds(2);
  constexpr auto kMost = std::chrono::seconds(10);
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  auto last_news = begin;
  for (;;) {
    const uint64_t launched = device.is_cpu() ? 0 : launched_so_far(device);
    try {
      return execute();
    } catch (const c10::OutOfMemoryError&) {
      if (device.is_cpu()) throw;
      free_memory(device);
      const auto now = Clock::now();
      if (launched_so_far(device) > launched + 1) last_news = now;  // (one was its own)
      if (now - last_news > kPatience || now - begin > kMost) throw;
    }
    std::this_thread::sleep_for(kTryEvery);
  }
}

}  // namespace lazyeng::run
