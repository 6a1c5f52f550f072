// csrc/run/cores/node_cores.cpp: on how many cores a node runs its kernel, and what that took.
#include <ATen/record_function.h>

#include <algorithm>

#include "csrc/run/caller/as_engine_thread.h"
#include "csrc/run/cores/openmp_team.h"
#include "csrc/run/cores/parts.h"
#include "csrc/run/cores/slices.h"
#include "csrc/run/cores/spare_cores.h"
#include "csrc/run/looked_up_rows.h"
#include "csrc/run/node.h"
#include "csrc/run/unseen.h"

namespace lazyeng::run {

std::unique_lock<std::mutex> take_all_cores() {
  static std::mutex all_cores;
  if (AsEngineThread::active()) return std::unique_lock(all_cores, std::try_to_lock);
  std::unique_lock lock(all_cores);
  openmp_helpers().look_for_cores();
  return lock;
}

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

/// Large ops run on all cores, with torch's own width, so that results are eager's bit for bit.
/// (Most kernels fan out for no less.)
std::unique_lock<std::mutex> Node::wait_for_cores() const {
  if (discovery || queue != engine::QueueId::cpu || largest_bytes() < kWideBytes) return {};
  return take_all_cores();
}

void Node::call_kernel_here(torch::jit::Stack& stack) const {
  check_rows(info, stack);
  if (width && width->is_narrow(settings.num_threads) && call_narrowly(stack)) return;
  if (const std::unique_lock<std::mutex> cores = wait_for_cores())
    call_and_measure(settings.num_threads, [&] { info.handle.callBoxed(stack); });
  else
    info.handle.callBoxed(stack);
}

/// On one core, or in slices that others may take a part of. False if the bits want all cores, so
/// far as is known.
bool Node::call_narrowly(torch::jit::Stack& stack) const {
  const int threads = settings.num_threads;
  const bool whole = width->one_has_the_bits(info, stack, threads);
  const bool others_help = parts_pay(width->microseconds(), threads);
  if (!(others_help || !whole) || !call_in_slices(stack, others_help)) {
    if (!whole) return false;
    const OneCore one(threads);
    call_and_measure(1, [&] { info.handle.callBoxed(stack); });
  }
  count_on_one_core();
  return true;
}

bool Node::call_in_slices(torch::jit::Stack& stack, bool others_help) const {
  const int threads = settings.num_threads;
  c10::SmallVector<const Geometry*, 4> looks;
  for (const ValueRef& output : outputs) looks.push_back(output ? &output->geometry() : nullptr);
  const std::unique_ptr<Slices> slices = width->slices(info, stack, looks, threads);
  if (!slices) return false;
  // (torch.profiler sees one call, of all parts.)
  RECORD_FUNCTION(info.handle.schema().name().c_str(), c10::ArrayRef<const c10::IValue>());
  const Unseen unseen;
  if (others_help) {
    const double on_one_core = width->microseconds();
    run_in_parts(slices->count(), settings, [&](int part) { slices->run(part); });
    if (on_one_core >= kWorthAllCores)
      spare_cores().ran_large(on_one_core, threads, SpareCores::Clock::now());
  } else {
    const OneCore one(threads);
    call_and_measure(1, [&] {
      for (int part = 0; part < slices->count(); ++part) slices->run(part);
    });
  }
  const OneCore one(threads);
  stack = slices->results();
  return true;
}

template <class Call>
void Node::call_and_measure(int cores, const Call& call) const {
  const auto begin = SpareCores::Clock::now();
  call();
  const auto end = SpareCores::Clock::now();
  const double took = std::chrono::duration<double, std::micro>(end - begin).count();
  const double on_one_core = width ? width->took(took, cores) : took * cores;
  if (cores > 1 && !spare_cores().for_large_ops() && on_one_core >= kWorthFreeCores)
    spare_cores().ran_on_all(on_one_core, settings.num_threads, end);
  else if (on_one_core >= kWorthAllCores)
    spare_cores().ran_large(on_one_core, settings.num_threads, end);
}

}  // namespace lazyeng::run
