// csrc/record/metadata/failed_first_call.cpp: whether it would have worked with other values.
//
// The first call of a kind may have to run to tell what it returns. If it fails then, eager's rule
// is what design.md promises: bad arguments raise at the call, bad values where a result is read.
// Both are exceptions of the kernel, often of one type (IndexError: an index out of range, or a dim
// that is not there). What tells them apart is the same kernel with the same looks and harmless
// values. Nobody minds how long that takes, as the call has failed.
#include "csrc/record/metadata/failed_first_call.h"

#include <algorithm>

#include "csrc/record/metadata/meta_answers.h"
#include "csrc/run/failures/python_error.h"

namespace lazyeng::record {
namespace {

/// Of the work it was to do, or something that came between.
bool is_of_its_arguments(const std::exception_ptr& thrown) {
  return !run::is_out_of_memory(thrown) && !run::is_interrupt(thrown);
}

/// An index that is out of range, on whatever device.
bool looks_up_outside(const Call& call, const std::exception_ptr& thrown) {
  if (!call.info.looks_up_by_values) return false;
  if (std::ranges::any_of(call.looks, [](const auto& look) { return look && look->numel() == 0; }))
    return false;
  try {
    std::rethrow_exception(thrown);
  } catch (const c10::IndexError&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

CallPlanRef plan_in_spite_of(const Call& call, const run::Node::Discovery& found) {
  if (!found.thrown && !found.poisoned) return nullptr;
  if (found.thrown && (call.info.writes || !is_of_its_arguments(found.thrown))) return nullptr;
  CallPlanRef plan;
  MetaAnswer answer = MetaAnswer::none;
  if (kernel_can_be_tried(call, TrialSize::any_sane))
    plan = ask_kernel(call);
  else if (found.thrown && looks_up_outside(call, found.thrown))
    plan = ask_meta(call, For::meta, answer);
  const bool records = plan && !plan->must_run && !plan->only_metadata && plan->rewrites.empty();
  return records ? plan : nullptr;
}

}  // namespace lazyeng::record
