// csrc/run/cores/node_cores.cpp: what a node's kernel is to know of its cores (kernel_call.h).
#include <algorithm>

#include "csrc/run/cores/kernel_call.h"
#include "csrc/run/looked_up_rows.h"
#include "csrc/run/node.h"

namespace lazyeng::run {

/// Of the largest tensor that it goes over.
uint64_t Node::largest_bytes() const {
  uint64_t largest = 0;
  const auto look_at = [&](const Geometry& g) {
    largest = std::max(largest, static_cast<uint64_t>(g.numel()) * c10::elementSize(g.dtype()));
  };
  for (const ValueRef& output : outputs)
    if (output) look_at(output->geometry());
  for (const Rewrite& rewrite : rewrites) look_at(rewrite.after->geometry());
  for (size_t i = info.takes_some_of_first ? 1 : 0; i < tensors.size(); ++i)
    if (tensors[i].value) look_at(tensors[i].value->geometry());
  return largest;
}

void Node::call_kernel_here(torch::jit::Stack& stack) const {
  check_rows(info, stack);
  const bool wide = !discovery && queue == engine::QueueId::cpu && largest_bytes() >= kWideBytes;
  if (!width && !wide) return info.handle.callBoxed(stack);
  KernelCall(info, width.get(), settings, wide, [this](KernelCall::ResultLooks& looks) {
    for (const ValueRef& output : outputs) looks.push_back(output ? &output->geometry() : nullptr);
  }).run(stack);
}

}  // namespace lazyeng::run
