// csrc/run/traces/stream_trace.h: when streams of devices did what, for lazyeng.profile.
//
// While somebody traces, each launch is put between two events of its stream. They are looked at
// when the trace is stopped: nothing waits for the device before.
#pragma once

#include <c10/core/Stream.h>
#include <c10/util/ArrayRef.h>

#include <memory>
#include <string>
#include <vector>

#include "csrc/run/traces/trace.h"

namespace c10 {
struct Event;
}

namespace lazyeng::run {

class Node;

/// What is launched between the two calls, on the stream of the node.
class StreamRange {
 public:
  explicit StreamRange(const Node& node);
  /// After the launch. Of `what`, the op or the members, and the number.
  void end(TraceEvent what) noexcept;

 private:
  const Node& node_;
  std::shared_ptr<c10::Event> begin_;  // null: nobody traces
};

/// As StreamRange::end wants it, of ops that were launched as one.
TraceEvent group_event(c10::ArrayRef<const Node*> nodes);

/// What was kept since the last call, a row for each stream; waits for the devices. Events are in
/// the time of trace.h.
std::vector<ThreadTrace> take_stream_ranges();
/// Forgets it.
void drop_stream_ranges();

}  // namespace lazyeng::run
