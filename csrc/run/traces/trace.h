// csrc/run/traces/trace.h: what lazyeng.profile keeps of each op: when it was recorded and run, and
// where.
//
// Each thread appends to a log of its own; stop() collects them. While nobody traces, a range costs
// the read of an atomic. Ranges that begin before start() or end after stop() are not kept.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "csrc/run/op_info.h"
#include "csrc/stacks/stack_table.h"

namespace lazyeng::run {

struct TraceEvent {
  enum class Kind : uint8_t { record, run, group, device };
  struct Member {
    const OpInfo* op;
    uint64_t number;
  };

  Kind kind = Kind::record;
  const OpInfo* op = nullptr;   ///< null: a group
  uint64_t number = 0;          ///< of the node, a group's first one; 0: a view, which needs none
  int64_t begin = 0;            ///< ns of the steady clock, as Python's time.perf_counter_ns
  int64_t end = 0;              ///< trace() sets it
  uint64_t bytes = 0;           ///< record: what the op will allocate
  bool failed = false;          ///< run
  stacks::StackRef stack = {};  ///< record: where the program called it
  std::vector<Member> members = {};  ///< group: in the order of recording
};

struct ThreadTrace {
  int64_t thread;    ///< the system's number of it
  std::string name;  ///< Python's name of it, or the system's
  std::vector<TraceEvent> events;
};

namespace detail {
inline constinit std::atomic<bool> tracing{false};
}

inline bool tracing() noexcept { return detail::tracing.load(std::memory_order_acquire); }

/// The time if somebody traces, otherwise 0.
inline int64_t trace_time() noexcept {
  if (!tracing()) [[likely]]
    return 0;
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

/// Keeps an event that begins at `event.begin` and ends now, on the calling thread's log. Nothing
/// if it began untraced. Any thread.
void trace(TraceEvent event) noexcept;

/// False if a trace is being made already.
bool start_trace();
/// All that was kept, by threads and by streams of devices, which are waited for. Any thread; once.
std::vector<ThreadTrace> stop_trace();

}  // namespace lazyeng::run
