// csrc/run/traces/stream_trace.cpp: pairs of events, and the host's time of them.
#include "csrc/run/traces/stream_trace.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <mutex>
#include <tuple>

#include "csrc/run/device/launch_order.h"

namespace lazyeng::run {
namespace {

using EventPtr = std::shared_ptr<c10::Event>;

/// Rows stand among threads: no thread of Linux has such a number.
constexpr int64_t kFirstRow = int64_t{1} << 23;

struct Range {
  c10::Stream stream;
  HostCopy::Direction copies;
  EventPtr begin, end;
  TraceEvent event;
};

struct Kept {
  std::mutex mutex;
  std::vector<Range> ranges;

  std::vector<Range> take() {
    std::lock_guard lock(mutex);
    return std::exchange(ranges, {});
  }
};

Kept& kept() {
  static auto* const instance = new Kept;
  return *instance;
}

EventPtr timed_event_on(const c10::Stream& stream) {
  auto event = std::make_shared<c10::Event>(stream.device_type(), c10::EventFlag::BACKEND_DEFAULT);
  event->record(stream);
  return event;
}

std::string row_name(const Range& range) {
  const std::string device = range.stream.device().str();
  if (range.copies == HostCopy::Direction::to_device) return device + " copies to it";
  if (range.copies == HostCopy::Direction::from_device) return device + " copies from it";
  if (range.stream == default_stream(range.stream.device())) return device + " default stream";
  return device + " stream " + std::to_string(range.stream.id());
}

/// An event that came at a known time, now.
class Anchor {
 public:
  explicit Anchor(c10::Device device) : event_(timed_event_on(default_stream(device))) {
    event_->synchronize();
    time_ = std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  }
  int64_t time_of(const c10::Event& event) const {
    return time_ - std::llround(1e6 * event.elapsedTime(*event_));  // (milliseconds)
  }

 private:
  EventPtr event_;
  int64_t time_ = 0;
};

using RangeIterator = std::vector<Range>::iterator;

/// One for each stream of a device, whose ranges these are, by stream. All times are by one anchor:
/// how late the host is told of it would move one row against another.
void add_rows(RangeIterator begin, RangeIterator end, std::vector<ThreadTrace>& rows) {
  const c10::DeviceGuard here(begin->stream.device());
  for (auto range = begin; range != end; ++range)
    if (std::next(range) == end || std::next(range)->stream != range->stream)
      range->end->synchronize();  // the last of its stream
  const Anchor anchor(begin->stream.device());
  for (auto range = begin; range != end; ++range) {
    if (range == begin || range->stream != std::prev(range)->stream)
      rows.push_back({kFirstRow + static_cast<int64_t>(rows.size()), row_name(*range), {}});
    range->event.begin = anchor.time_of(*range->begin);
    range->event.end = anchor.time_of(*range->end);
    rows.back().events.push_back(std::move(range->event));
  }
}

}  // namespace

StreamRange::StreamRange(const Node& node) : node_(node) {
  if (!tracing() || node.device.is_cpu() || node.captured) return;
  begin_ = timed_event_on(launch_stream(node));
}

void StreamRange::end(TraceEvent what) noexcept {
  if (!begin_) return;
  try {
    const c10::Stream stream = launch_stream(node_);
    what.kind = TraceEvent::Kind::device;
    Range range{stream, node_.host_copy.direction, std::move(begin_), timed_event_on(stream),
                std::move(what)};
    std::lock_guard lock(kept().mutex);
    kept().ranges.push_back(std::move(range));
  } catch (const std::exception&) {
    // A lost device, or no memory: the row lacks it.
  }
}

TraceEvent group_event(c10::ArrayRef<const Node*> nodes) {
  TraceEvent event{.number = nodes[0]->number};
  if (nodes.size() == 1) event.op = &nodes[0]->info;
  if (nodes.size() > 1 && tracing())
    for (const Node* node : nodes) event.members.push_back({&node->info, node->number});
  return event;
}

void drop_stream_ranges() { kept().take(); }

std::vector<ThreadTrace> take_stream_ranges() {
  std::vector<Range> ranges = kept().take();
  std::stable_sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return std::tuple(a.stream.device_index(), a.stream.id()) <
           std::tuple(b.stream.device_index(), b.stream.id());
  });
  std::vector<ThreadTrace> rows;
  const auto same_device = [](const Range& a, const Range& b) {
    return a.stream.device() == b.stream.device();
  };
  for (auto begin = ranges.begin(), end = begin; begin != ranges.end(); begin = end) {
    end = std::find_if(begin, ranges.end(),
                       [&](const Range& range) { return !same_device(*begin, range); });
    try {
      add_rows(begin, end, rows);
    } catch (const std::exception&) {
      // The device is lost: no times are known.
    }
  }
  return rows;
}

}  // namespace lazyeng::run
