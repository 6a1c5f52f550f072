// csrc/record/forward_stacks.cpp: a bounded table from autograd nodes to creation stacks.
#include "csrc/record/forward_stacks.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>

#include <vector>

namespace lazyeng::record {
namespace {

struct Entry {
  uint64_t thread = 0;
  uint64_t number = 0;  ///< of the autograd node, in its thread
  stacks::StackRef stack;
};

// As many as the forward pass of a large model has ops; a power of two.
constexpr size_t kEntries = size_t{1} << 16;

/// Guarded by the GIL. Newer entries take the place of those 65536 numbers older.
Entry& entry_of(uint64_t thread, uint64_t number) {
  static auto* const entries = new std::vector<Entry>(kEntries);
  return (*entries)[(number + thread * 0x9E3779B1) % kEntries];
}

thread_local uint64_t next_number_seen = 0;

}  // namespace

bool has_new_autograd_node() { return at::sequence_number::peek() != next_number_seen; }

void note_forward(const stacks::StackRef& stack) {
  next_number_seen = at::sequence_number::peek();
  if (!stack || next_number_seen == 0) return;
  const uint64_t thread = at::RecordFunction::currentThreadId();
  entry_of(thread, next_number_seen - 1) = {thread, next_number_seen - 1, stack};
}

stacks::StackRef forward_stack() {
  const auto node = torch::autograd::get_current_node();
  if (!node) return {};
  const Entry& entry = entry_of(node->thread_id(), node->sequence_nr());
  const bool same = entry.thread == node->thread_id() && entry.number == node->sequence_nr();
  return same ? entry.stack : stacks::StackRef();
}

}  // namespace lazyeng::record
