// csrc/fuse/graphs/step_graph.cpp: which graph a segment belongs to.
#include "csrc/fuse/graphs/step_graph.h"

#include <algorithm>
#include <limits>

#include "csrc/run/traces/trace.h"

namespace lazyeng::fuse {
namespace {

constexpr size_t kMostMemories = 128;
constexpr uint64_t kStale = 1024;  // replays that a memory has not come in
constexpr uint64_t kRecent = 64;
constexpr uint64_t kNotWorthACopy = 1 << 20;  // bytes: two thirds of a microsecond of an H100

std::atomic<bool> switched_on{false};

/// Of the memory that tells graphs apart.
uint64_t hash_of_memory(const Observation& now) {
  Key words;
  for (size_t v = 0; v < now.addresses.size(); ++v)
    if (now.addresses[v] && (now.written[v] || now.sizes[v] >= kNotWorthACopy))
      words.insert(words.end(), {v, reinterpret_cast<uint64_t>(now.addresses[v])});
  return HashKey()(words);
}

}  // namespace

bool StepGraph::is_due() {
  return replays_.fetch_add(1, std::memory_order_relaxed) + 1 >=
         resumes_at_.load(std::memory_order_relaxed);
}

std::optional<std::vector<bool>> StepGraph::changing_nodes() {
  if (!numbers_change_.load(std::memory_order_acquire)) return std::nullopt;
  // (Who runs a segment may hold the mutex and wait for the GIL: it is tried again next time.)
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return std::nullopt;
  for (const auto& [memory, graph] : graphs_)
    if (std::vector<bool> changing = graph.changing_nodes(); !changing.empty()) return changing;
  return std::nullopt;
}

/// Without those of memory that is gone; or by no memory, if none has come again.
void StepGraph::make_room(uint64_t replay) {
  std::erase_if(graphs_, [&](const auto& of) { return of.second.last_replay() + kStale < replay; });
  if (graphs_.size() < kMostMemories) return;
  if (std::ranges::none_of(graphs_, [](const auto& of) { return of.second.came_again(); })) {
    by_memory_ = false;
    return graphs_.clear();
  }
  graphs_.erase(std::ranges::min_element(graphs_, {},
                                         [](const auto& of) { return of.second.last_replay(); }));
}

MemoryGraph& StepGraph::graph_for(const Observation& now, uint64_t replay) {
  const uint64_t memory = by_memory_ ? hash_of_memory(now) : 0;
  if (const auto found = graphs_.find(memory); found != graphs_.end()) return found->second;
  if (graphs_.size() >= kMostMemories || MemoryGraph::too_many()) make_room(replay);
  return graphs_[by_memory_ ? memory : 0];
}

/// What no graph of it is worth to be looked at for need not be pushed as a segment. (Memory that
/// came in a warm-up alone has no say.)
void StepGraph::note_resumption(uint64_t replay) {
  uint64_t first = std::numeric_limits<uint64_t>::max();
  bool numbers_change = false;
  for (const auto& [memory, graph] : graphs_) {
    if (graph.last_replay() + kRecent >= replay) first = std::min(first, graph.resumes_at());
    numbers_change |= !graph.changing_nodes().empty();
  }
  resumes_at_.store(first, std::memory_order_relaxed);
  numbers_change_.store(numbers_change, std::memory_order_release);
}

void StepGraph::note_unobserved() {
  constexpr uint32_t kMost = 4;  // in a row
  constexpr uint64_t kPause = 64;
  if (++unobserved_ % kMost == 0)
    resumes_at_.store(replays_.load(std::memory_order_relaxed) + kPause, std::memory_order_relaxed);
}

bool StepGraph::run_locked(Segment& segment) {
  // (The plan is about to be divided anew: each memory would find out the same.)
  if (numbers_change_.load(std::memory_order_relaxed)) return false;
  std::optional<Observation> now = observe(segment);
  if (!now) {
    note_unobserved();
    return false;
  }
  unobserved_ = 0;
  const uint64_t replay = replays_.load(std::memory_order_relaxed);
  MemoryGraph& graph = graph_for(*now, replay);
  bool good = false;
  try {
    good = graph.run(segment, std::move(*now), replay);
  } catch (...) {
    graph.give_up();  // (the capture was not permitted, or there is no memory for it)
  }
  note_resumption(replay);
  return good;
}

bool StepGraph::run(Segment& segment) noexcept {
  // (A profile is to show the ops.)
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || run::tracing()) return false;
  try {
    return run_locked(segment);
  } catch (...) {
    note_unobserved();  // (no memory of the host)
    return false;
  }
}

void set_cuda_graphs(bool on) { switched_on.store(on, std::memory_order_relaxed); }
bool cuda_graphs() { return switched_on.load(std::memory_order_relaxed); }

}  // namespace lazyeng::fuse
