// csrc/record/forward_stacks.cpp: a table from autograd nodes to creation stacks.
//
// The node exists before our kernel is called, but nobody shows it to us: the result gets it after
// the kernel has returned. So the newest entry of each thread watches its result, and the next call
// on the thread finds the node there. From then on the entry knows
// whether its node still lives: stacks of dead ones are let go of, live ones are never overwritten.
#include "csrc/record/forward_stacks.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <optional>
#include <utility>
#include <vector>

#include "csrc/record/lazy_tensor.h"

namespace lazyeng::record {
namespace {

// torch 2.13 counts references to nodes in another way than 2.11.
template <class T>
std::weak_ptr<T> weak(const std::shared_ptr<T>& node) {
  return node;
}
template <class T>
c10::weak_intrusive_ptr<T> weak(const c10::intrusive_ptr<T>& node) {
  return c10::weak_intrusive_ptr<T>(node);
}
using WeakNode = decltype(weak(std::declval<torch::autograd::AutogradMeta>().grad_fn_));

struct Entry {
  uint64_t thread = 0;
  uint64_t number = 0;  ///< of the autograd node, in its thread
  stacks::StackRef stack;
  std::optional<WeakNode> node;  ///< empty: not known yet

  bool is_of(uint64_t thread_id, uint64_t sequence) const {
    return thread == thread_id && number == sequence;
  }
  bool is_dead() const { return node && node->expired(); }
  bool is_live() const { return node && !node->expired(); }
  /// Nobody can tell whether its node lives: that of an autograd.Function.
  bool is_unknown() const { return stack && !node; }
};

/// All guarded by the GIL. The place of an entry follows from its node's number, so newer ones meet
/// those that are as many numbers older as there are places.
class ForwardStacks {
 public:
  Entry& place_of(uint64_t thread, uint64_t number) {
    return entries_[(number + thread * 0x9E3779B1) & (entries_.size() - 1)];
  }

  void put(Entry entry) {
    while (entries_.size() < most_for(place_of(entry.thread, entry.number))) grow();
    place_of(entry.thread, entry.number) = std::move(entry);
    look_at_next();
  }

  void forget_dead() {
    for (Entry& entry : entries_)
      if (entry.is_dead()) entry = {};
  }

 private:
  // Powers of two. A small model's ops have place in the first, a large one's in kMost. What may
  // have died unseen gives way when so many numbers have gone by.
  static constexpr size_t kFirst = size_t{1} << 9, kUnknown = size_t{1} << 16,
                          kMost = size_t{1} << 21;

  /// Places among which this entry may keep its own.
  static size_t most_for(const Entry& entry) {
    if (entry.is_live()) return kMost;
    return entry.is_unknown() ? kUnknown : 0;
  }

  /// Some for each new one: dead entries stay until a quarter as many new ones have come as there
  /// are places. (A reference to a dead node keeps its memory, though not what it refers to.)
  void look_at_next() {
    constexpr size_t kLooks = 4;
    for (size_t i = 0; i < kLooks; ++i) {
      next_ = (next_ + 1) & (entries_.size() - 1);
      if (entries_[next_].is_dead()) entries_[next_] = {};
    }
  }

  /// (What lay in different places does so among more of them.)
  void grow() {
    std::vector<Entry> old(2 * entries_.size());
    old.swap(entries_);
    for (Entry& entry : old)
      if (entry.stack && !entry.is_dead()) place_of(entry.thread, entry.number) = std::move(entry);
  }

  std::vector<Entry> entries_{kFirst};
  size_t next_ = 0;  ///< the place that has been looked at last
};

ForwardStacks& forward_stacks() {
  static auto* const instance = new ForwardStacks;
  return *instance;
}

/// The newest entry of this thread, whose node its result is about to get.
struct Newest {
  uint64_t thread = 0, number = 0;
  bool waits = false;
  ResultWatch result;
};
Newest& newest() {
  static thread_local Newest instance;
  return instance;
}
thread_local uint64_t next_number_seen = 0;

void wait_for_node(const at::Tensor& result, uint64_t thread, uint64_t number) {
  LazyImpl* const lazy = result.defined() ? lazy_impl(result) : nullptr;
  if (!lazy) return;
  Newest& last = newest();
  last.thread = thread;
  last.number = number;
  last.waits = true;
  last.result.watch(*lazy);
}

/// A result that died before the next call has taken its node along. (Unless somebody has asked for
/// the node itself, and nothing else: its line is then not told of.)
void find_node(Entry& entry, ResultWatch& watched) {
  const bool alive = watched.look([&](const LazyImpl& result) {
    const auto* meta = static_cast<torch::autograd::AutogradMeta*>(result.autograd_meta());
    if (meta && meta->grad_fn_ && meta->grad_fn_->sequence_nr() == entry.number)
      entry.node = weak(meta->grad_fn_);
  });
  if (!alive) entry = {};
}

/// Autograd numbers nodes by thread.
uint64_t id_of(uint64_t thread, uint64_t number) {
  constexpr int kBitsOfNumber = 44;
  return thread << kBitsOfNumber | (number & ((uint64_t{1} << kBitsOfNumber) - 1));
}

void find_node_of_newest() {
  Newest& last = newest();
  if (!std::exchange(last.waits, false)) return;
  Entry& entry = forward_stacks().place_of(last.thread, last.number);
  if (entry.is_of(last.thread, last.number)) find_node(entry, last.result);
}

}  // namespace

bool in_backward_pass() { return static_cast<bool>(torch::autograd::get_current_node()); }

bool has_new_autograd_node() { return at::sequence_number::peek() != next_number_seen; }

void note_forward(const stacks::StackRef& stack, const at::Tensor& result) {
  find_node_of_newest();
  next_number_seen = at::sequence_number::peek();
  if (!stack || next_number_seen == 0) return;
  const uint64_t thread = at::RecordFunction::currentThreadId();
  forward_stacks().put({thread, next_number_seen - 1, stack, {}});
  wait_for_node(result, thread, next_number_seen - 1);
}

void note_forward_result(const at::Tensor& result) {
  if (next_number_seen == 0 || newest().waits) return;
  wait_for_node(result, at::RecordFunction::currentThreadId(), next_number_seen - 1);
}

void find_forward_node() { find_node_of_newest(); }

stacks::StackRef forward_stack() {
  const auto node = torch::autograd::get_current_node();
  if (!node) return {};
  Entry& entry = forward_stacks().place_of(node->thread_id(), node->sequence_nr());
  if (!entry.is_of(node->thread_id(), node->sequence_nr())) return {};
  if (!entry.node) entry.node = weak(node);  // (of an autograd.Function no result was watched)
  return entry.stack;
}

void forget_newest_in_child() noexcept {
  newest().waits = false;
  newest().result = {};
}

void forget_dead_forward_stacks() {
  find_node_of_newest();
  forward_stacks().forget_dead();
}

bool capture_stacks(run::Node& node, const at::Tensor& result) {
  find_forward_node();
  node.stack = stacks::capture();
  if (const auto forward = torch::autograd::get_current_node()) {
    node.forward_stack = forward_stack();
    node.backward_of = id_of(forward->thread_id(), forward->sequence_nr());
  }
  // (With create_graph, the gradient's own gradient leads to the same forward op.)
  if (!has_new_autograd_node()) return false;
  node.autograd_node =
      id_of(at::RecordFunction::currentThreadId(), at::sequence_number::peek() - 1);
  note_forward(node.forward_stack ? node.forward_stack : node.stack, result);
  return true;
}

}  // namespace lazyeng::record
