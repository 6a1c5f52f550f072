// csrc/record/metadata/meta_answers.h: a call asked what it would return, on tensors without its
// values.
//
// infer.h says who is asked when. An answer, and the results of a run, are read against the tensors
// that went in: what is new, what is a view of which, whose metadata has moved.
#pragma once

#include <vector>

#include "csrc/record/metadata/infer.h"
#include "csrc/record/metadata/stand_ins.h"

namespace lazyeng::record {

using For = StandIns::For;

/// none: there is nobody to ask.
enum class MetaAnswer : uint8_t { given, none, refused };

/// What the meta function says. Null: nothing that can be relied on.
CallPlanRef ask_meta(const Call& call, For whom, MetaAnswer& answer);

/// What the kernel itself makes of tensors that look like the arguments.
CallPlanRef ask_kernel(const Call& call);

/// Adds the results of a run to the plan. False: some are not to be recorded.
bool read_results(const Call& call, const std::vector<at::Tensor>& inputs,
                  const torch::jit::Stack& results, CallPlan& plan);

/// It returns views, or moves metadata, and does no more.
bool nothing_to_run(const Call& call, const CallPlan& plan);

/// The plan holds as long as no run has shown another layout.
void add_doubt(const Call& call, CallPlan& plan);

/// True if the call came out of a structured meta function that was asked: it is answered.
bool answer_structured_meta(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace lazyeng::record
