// csrc/fuse/graphs/memory_graph.cpp: when a segment is captured, and one launch of its graph.
#include "csrc/fuse/graphs/memory_graph.h"

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <deque>
#include <limits>

#include "csrc/fuse/device/kernel_requests.h"
#include "csrc/fuse/graphs/capture_values.h"
#include "csrc/fuse/graphs/cuda_graph.h"
#include "csrc/run/device/launch_log.h"
#include "csrc/run/device/launch_order.h"
#include "csrc/run/traces/trace.h"

namespace lazyeng::fuse {

/// Fixed but for what lies in its memory.
struct CapturedGraph {
  CapturedGraph(Observation seen, std::unique_ptr<CudaGraph> graph,
                std::vector<c10::Storage> memory)
      : seen(std::move(seen)), graph(std::move(graph)), memory(std::move(memory)) {
    for (const c10::Storage& storage : this->memory) bytes += storage ? storage.nbytes() : 0;
    graph_stats().bytes.fetch_add(bytes, std::memory_order_relaxed);
    live.fetch_add(1, std::memory_order_relaxed);
  }
  ~CapturedGraph() {
    graph_stats().bytes.fetch_sub(bytes, std::memory_order_relaxed);
    live.fetch_sub(1, std::memory_order_relaxed);
  }

  bool agrees(const Observation& now) const {
    if (now.numbers != seen.numbers) return false;
    for (size_t v = 0; v < memory.size(); ++v) {
      const bool made = !now.addresses[v];
      if (made != !seen.addresses[v]) return false;
      const bool has_memory = static_cast<bool>(memory[v]);
      if (made ? now.held[v] && !has_memory : !has_memory && now.addresses[v] != seen.addresses[v])
        return false;
    }
    return true;
  }

  static inline std::atomic<uint32_t> live{0};

  const Observation seen;
  const std::unique_ptr<const CudaGraph> graph;
  const std::vector<c10::Storage> memory;  // of what is copied in or out; null: of others
  uint64_t bytes = 0;
};

namespace {

constexpr uint32_t kMostMisses = 4;      // in a row
constexpr uint64_t kPause = 64;          // replays; each further pause is twice as long
constexpr uint32_t kWorthACapture = 16;  // launches
constexpr uint32_t kMostHasty = 4;
constexpr uint32_t kMostGraphs = 64;

/// The device's memory as bytes.
at::Tensor bytes_of(const c10::Storage& storage) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA),
      c10::scalarTypeToTypeMeta(c10::kByte));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<int64_t>(storage.nbytes())});
  return tensor;
}

/// One launch of a graph, for one segment.
class GraphLaunch {
 public:
  GraphLaunch(Segment& segment, const CapturedGraph& graph, const Observation& now)
      : segment_(segment), graph_(graph), now_(now), device_(segment.nodes()[0]->device) {}

  /// Throws if it cannot, and then nothing has happened. False: the graph was launched, and what
  /// follows failed; all ops are over, with that.
  bool run() {
    const c10::DeviceGuard here(device_);
    const run::OnStream on_stream(*segment_.nodes()[0]);
    make_results();
    // Any op may be the one that a failure of these kernels is blamed on.
    std::deque<run::Launch> log;
    for (const run::Node* node : segment_.nodes()) log.emplace_back(*node);
    const c10::SmallVector<const run::Node*, 8> nodes(segment_.nodes().begin(),
                                                      segment_.nodes().end());
    run::wait_for_other_streams(nodes);
    copy_inputs();
    graph_.graph->launch(segment_.nodes()[0]->stream().native_handle());
    try {
      copy_results();
      run::note_launch(nodes);
      return true;
    } catch (...) {
      run::note_interrupted_launch(nodes);
      for (run::Node* node : segment_.nodes()) segment_.fail(*node, std::current_exception());
      return false;
    }
  }

 private:
  template <class F>
  void for_each_copy(const F& f) const {
    const auto claims = segment_.claims();
    for (size_t v = 0; v < claims.size(); ++v)
      if (graph_.memory[v]) f(v, static_cast<run::StorageVar&>(*claims[v].var), graph_.memory[v]);
  }

  void make_results() {
    results_.resize(now_.addresses.size());
    for_each_copy([this](size_t v, run::StorageVar&, const c10::Storage& memory) {
      if (!now_.addresses[v] && now_.held[v])
        results_[v] = run::new_storage(memory.nbytes(), device_);
    });
  }

  void copy_inputs() const {
    for_each_copy([this](size_t v, run::StorageVar& var, const c10::Storage& memory) {
      if (now_.addresses[v]) bytes_of(memory).copy_(bytes_of(var.engine_face()), true);
    });
  }

  void copy_results() {
    for_each_copy([this](size_t v, run::StorageVar& var, const c10::Storage& memory) {
      if (!results_[v]) return;
      bytes_of(results_[v]).copy_(bytes_of(memory), true);
      var.set_nbytes(memory.nbytes());
      var.set_engine_face(std::move(results_[v]));
    });
  }

  Segment& segment_;
  const CapturedGraph& graph_;
  const Observation& now_;
  const c10::Device device_;
  std::vector<c10::Storage> results_;
};

/// torch's captures are one at a time on a stream.
std::mutex& capturing() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

}  // namespace

MemoryGraph::MemoryGraph() = default;
MemoryGraph::~MemoryGraph() = default;

bool MemoryGraph::too_many() {
  return CapturedGraph::live.load(std::memory_order_relaxed) >= kMostGraphs;
}

void MemoryGraph::give_up() {
  graph_ = nullptr;
  resumes_at_ = std::numeric_limits<uint64_t>::max();
}

void MemoryGraph::pause() {
  graph_ = nullptr;
  last_.reset();
  misses_ = hasty_captures_ = 0;
  resumes_at_ = replay_ + (kPause << std::min(pauses_++, 12u));
}

void MemoryGraph::note_miss() {
  if (++misses_ < kMostMisses) return;
  const bool numbers_change = std::ranges::find(changing_, true) != changing_.end();
  pause();
  numbers_change_ = numbers_change;
}

std::vector<bool> MemoryGraph::changing_nodes() const {
  return numbers_change_ ? changing_ : std::vector<bool>();
}

void MemoryGraph::note_changed_numbers(const Observation& now) {
  changing_.resize(now.ends.size() - 1);
  if (last_->ends != now.ends) return;
  for (size_t n = 0; n < changing_.size(); ++n)
    for (size_t i = now.ends[n]; i < now.ends[n + 1]; ++i)
      if (last_->numbers[i] != now.numbers[i]) changing_[n] = true;
}

/// Inputs that lie elsewhere than before.
void MemoryGraph::note_changed_places(const Observation& before, const Observation& now) {
  for (size_t v = 0; v < copied_.size(); ++v)
    if (before.addresses[v] && now.addresses[v] && before.addresses[v] != now.addresses[v] &&
        !now.written[v])
      copied_[v] = true;
}

/// What differs from the last time, and from the graph that there is.
void MemoryGraph::note_changes(const Observation& now) {
  copied_.resize(now.addresses.size());
  kept_.resize(now.addresses.size());
  for (size_t v = 0; v < kept_.size(); ++v) kept_[v] = kept_[v] || now.held[v];
  if (graph_) note_changed_places(graph_->seen, now);
  if (!last_) return;
  note_changed_places(*last_, now);
  note_changed_numbers(now);
}

/// Whether a graph of this segment would be right for that one, but for inputs that are copied and
/// results that are kept.
static bool is_alike(const Observation& before, const Observation& now) {
  if (before.numbers != now.numbers) return false;
  for (size_t v = 0; v < now.addresses.size(); ++v)
    if (!before.addresses[v] != !now.addresses[v] ||
        (now.written[v] && before.addresses[v] != now.addresses[v]))
      return false;
  return true;
}

/// It comes for the second time at least.
bool MemoryGraph::may_capture(const Observation& now) const {
  if (!(last_ && is_alike(*last_, now)) && !(graph_ && is_alike(graph_->seen, now))) return false;
  return CapturedGraph::live.load(std::memory_order_relaxed) < kMostGraphs + (graph_ ? 1 : 0);
}

/// The op cannot be captured, as one whose numbers change: the plan's next segments are what lies
/// before and behind it.
void MemoryGraph::leave_out(Segment& segment, size_t op) {
  size_t node = 0;
  for (size_t i = 0; i < op; ++i) node += nodes_in(*segment.ops()[i]);
  changing_.assign(segment.nodes().size(), false);
  for (size_t end = node + nodes_in(*segment.ops()[op]); node < end; ++node) changing_[node] = true;
  numbers_change_ = true;
}

bool MemoryGraph::capture(Segment& segment, const Observation& now) {
  const std::unique_lock one_at_a_time(capturing(), std::try_to_lock);
  if (!one_at_a_time) return false;
  const c10::Device device = segment.nodes()[0]->device;
  const c10::DeviceGuard here(device);
  const c10::Stream stream = capture_stream(device);
  CaptureValues values(segment, now, copied_, kept_, stream);
  const c10::StreamGuard on_stream(stream);
  auto graph = std::make_unique<CudaGraph>(device);
  size_t captured = 0;
  const CaptureValues::Captured end = values.capture_ops(captured);
  if (end != CaptureValues::Captured::all) {  // (the graph ends the capture)
    if (end == CaptureValues::Captured::not_one) leave_out(segment, captured);
    give_up();
    return false;
  }
  graph->end();
  // (Kernels that were asked for meanwhile: it is worth more with them.)
  if (kernel_requests().pending() != 0) return false;
  // (Another thread has changed a setting: which kernels were captured with which is not known.)
  if (!has_settings_of(now)) return false;
  graph_ = std::make_unique<CapturedGraph>(now, std::move(graph), values.memory());
  hasty_captures_ = launches_ >= kWorthACapture ? 1 : hasty_captures_ + 1;
  launches_ = 0;
  return true;
}

bool MemoryGraph::launch(Segment& segment, const Observation& now) {
  bool good = false;
  try {
    good = GraphLaunch(segment, *graph_, now).run();
  } catch (...) {
    // No memory, a lost device: the ops themselves will tell. Or it is the graph's fault.
    give_up();
    return false;
  }
  misses_ = 0;
  changing_.clear();
  numbers_change_ = false;
  if (++launches_ >= kWorthACapture) pauses_ = 0;
  graph_stats().launches.fetch_add(1, std::memory_order_relaxed);
  graph_stats().nodes.fetch_add(segment.nodes().size(), std::memory_order_relaxed);
  if (good) segment.report_changed_inputs();
  return true;
}

bool MemoryGraph::run(Segment& segment, Observation now, uint64_t replay) {
  replay_ = replay;
  if (replay < resumes_at_) return false;
  ++observed_;
  if (graph_ && graph_->agrees(now)) return launch(segment, now);
  note_changes(now);
  const bool kernels_are_there = kernel_requests().pending() == 0;
  const bool wanted = may_capture(now) && kernels_are_there;
  if (wanted && hasty_captures_ >= kMostHasty) {
    pause();
    return false;
  }
  if (wanted && capture(segment, now)) {
    last_ = std::move(now);
    return launch(segment, *last_);
  }
  last_ = std::move(now);
  if (kernels_are_there) note_miss();
  return false;
}

GraphStats& graph_stats() {
  static auto* const instance = new GraphStats;
  return *instance;
}

}  // namespace lazyeng::fuse
