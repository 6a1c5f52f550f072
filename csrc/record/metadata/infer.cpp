// csrc/record/metadata/infer.cpp: whom to ask what an op will return, and what its runs teach.
#include "csrc/record/metadata/infer.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>

#include "csrc/fuse/bits/trials.h"
#include "csrc/record/metadata/costs.h"
#include "csrc/record/metadata/doubts.h"
#include "csrc/record/metadata/draws_like.h"
#include "csrc/record/metadata/meta_answers.h"
#include "csrc/record/metadata/meta_trust.h"
#include "csrc/record/metadata/number_range.h"
#include "csrc/record/metadata/one_element.h"
#include "csrc/record/metadata/probe.h"
#include "csrc/record/metadata/size_checks.h"
#include "csrc/record/metadata/smaller.h"
#include "csrc/run/caller/caller_modes.h"
#include "csrc/run/executor.h"

namespace lazyeng::record {
namespace {

using Kind = OutputPlan::Kind;

bool makes_tensors(const run::OpInfo& info) {
  return std::any_of(info.returns.begin(), info.returns.end(), [](const run::ReturnInfo& result) {
    return result.tensor && result.written_arg < 0;
  });
}

/// Pointwise ops on the CPU first copy the arguments that have another dtype than the one they
/// compute in; a copy of what is not dense has strides of its own, and the result follows those.
/// Structured meta functions copy nothing on other devices, such as that of their stand-ins.
bool follows_a_copy(const Call& call, const CallPlan& plan) {
  if (!call.info.handle.hasTag(at::Tag::pointwise)) return false;  // (an index is not promoted)
  if (plan.outputs.empty() || !plan.outputs[0].geometry) return false;
  const c10::ScalarType result = plan.outputs[0].geometry->dtype();
  std::optional<c10::ScalarType> first;
  bool mixed = false, copied = false;
  for (const run::GeometryRef& look : call.looks) {
    if (!look || look->data().wrapped_number) continue;
    mixed |= first && *first != look->dtype();
    first = first.value_or(look->dtype());
    copied |= !look->dense() && look->dtype() != result;
  }
  return copied && (mixed || result != c10::kBool);  // (comparisons of one dtype copy nothing)
}

/// Blind to strides that no element can show.
bool same_look(const run::Geometry& a, const run::Geometry& b) {
  run::GeometryData of_a = a.data();
  for (size_t d = 0; d < of_a.sizes.size() && d < b.sizes().size(); ++d)
    if (of_a.sizes[d] == 1 || a.numel() == 0) of_a.strides[d] = b.strides()[d];
  return of_a == b.data();
}

bool same(const OutputPlan& said, const OutputPlan& found, bool exactly) {
  if (said.kind != found.kind || said.of != found.of) return false;
  if (said.kind == Kind::undefined) return true;
  return exactly ? said.geometry->data() == found.geometry->data()
                 : same_look(*said.geometry, *found.geometry);
}

std::vector<at::Tensor> real_arguments_of(const Call& call) {
  std::vector<at::Tensor> inputs;
  for (const run::TensorArg& arg : call.tensors) inputs.push_back(arg.real());
  return inputs;
}

/// Meta functions of draws (`rand(2, dtype=torch.int)`) take any dtype, and a kernel that is called
/// to hear whether it refuses would draw.
bool may_refuse_dtype(const Call& call, const CallPlan& plan) {
  if (!call.info.random || call.info.writes || !call.info.aten || plan.outputs.empty() ||
      !plan.outputs[0].geometry)
    return false;
  const c10::ScalarType dtype = plan.outputs[0].geometry->dtype();
  const auto draws = [&](std::string_view family) {
    return call.info.short_name.compare(0, family.size(), family) == 0;
  };
  if (draws("randint") || draws("randperm"))
    return dtype == c10::kBool ||
           (!c10::isIntegralType(dtype, false) && dtype != c10::kFloat && dtype != c10::kDouble);
  constexpr std::array kDrawn = {c10::kFloat,    c10::kDouble,       c10::kHalf,
                                 c10::kBFloat16, c10::kComplexFloat, c10::kComplexDouble};
  return (draws("rand") || draws("normal")) && std::ranges::find(kDrawn, dtype) == kDrawn.end();
}

/// Kernels refuse to write a tensor some of whose elements share memory; not all meta functions do.
bool writes_overlapping(const Call& call) {
  if (!call.info.writes || call.info.moves_metadata) return false;
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    if (!call.tensors[i].written || !call.looks[i]) continue;
    const run::Geometry& look = *call.looks[i];
    for (size_t d = 0; d < look.sizes().size(); ++d)
      if (look.sizes()[d] > 1 && look.strides()[d] == 0) return true;
  }
  return false;
}

bool is_dense(const run::GeometryRef& look) {
  return look && (look->dense() || look->numel() == 0);
}

/// Kernels refuse to write what another argument has a part of, so far as torch tells: of dense
/// tensors (ATen/MemoryOverlap.cpp). What goes element by element takes the whole of it.
bool writes_of_another(const Call& call) {
  if (!call.info.writes || call.info.moves_metadata || !call.info.aten) return false;
  const bool takes_whole = call.info.pointwise || call.info.base == "aten::copy_";
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    if (!call.tensors[i].written || !is_dense(call.looks[i])) continue;
    for (size_t j = 0; j < call.tensors.size(); ++j) {
      if (i == j || !is_dense(call.looks[j])) continue;
      const bool is_whole = call.looks[i]->data() == call.looks[j]->data();
      if (!(is_whole && takes_whole) && share_memory(call, i, j)) return true;
    }
  }
  return false;
}

/// Whether the kernel may set the conjugate bit of a result that it is given: nothing but the call
/// tells.
bool may_conjugate_given(const Call& call) {
  if (call.info.short_name != "linalg_lu_solve") return false;
  for (size_t i = 0; i < call.tensors.size(); ++i)
    if (call.tensors[i].written && call.looks[i] && c10::isComplexType(call.looks[i]->dtype()))
      return true;
  return false;
}

/// Which the CPU's kernels refuse: a driver of cuSOLVER's; to go without pivots.
bool names_option_of_gpus(const Call& call) {
  const bool svd = call.info.base == "aten::_linalg_svd";
  const std::optional<int> arg =
      call.info.handle.schema().argumentIndexWithName(svd ? "driver" : "pivot");
  if (!arg || !call.looks[0] || !call.looks[0]->device().is_cpu()) return false;
  const c10::IValue& option = call.args[*arg];
  return svd ? option.isString() : option.isBool() && !option.toBool();
}

CallPlanRef plan_of_fresh(const Call& call, c10::ArrayRef<run::GeometryRef> results) {
  auto plan = make_ref<CallPlan>();
  for (const run::GeometryRef& result : results)
    plan->outputs.push_back({Kind::fresh, 0, result, 0});
  add_doubt(call, *plan);
  add_costs(call, *plan);
  return plan;
}

CallPlanRef plan_that_must_run() {
  auto plan = make_ref<CallPlan>();
  plan->must_run = true;
  return plan;
}

/// It is asked as for the CPU's kernel. (linalg_svd has other strides by cuSOLVER than by LAPACK.)
bool structured_meta_is_right(const Call& call) {
  const auto is_cuda = [](const run::GeometryRef& look) {
    return look && look->device().is_cuda();
  };
  return call.info.structured_meta &&
         !(call.info.wrong_meta && std::any_of(call.looks.begin(), call.looks.end(), is_cuda));
}

/// The kernel decides on strides that no meta function tells, nor a trial of it on one core: for
/// volumes and windows of one element torch asks how many cores there are.
bool has_layout_of_kernel(const Call& call) {
  const bool volumes = call.info.work == run::Work::convolution && call.looks[0] &&
                       call.looks[0]->sizes().size() == 5;
  return (call.info.meta_forgets_layout || volumes) &&
         std::any_of(call.looks.begin(), call.looks.end(), [](const run::GeometryRef& look) {
           return look && !has_usual_strides(*look);
         });
}

/// Its kernel casts by rules that meta functions do not have, nor those of custom ops: autocast
/// leaves tensors without memory alone.
bool casts_in_kernel(const Call& call) {
  return (call.info.calls_cast_ops || !call.info.torchs) &&
         !run::CallerModes::of_this_thread().autocast.empty();
}

/// Not all meta functions look (that of sort does not). Where one more is allowed (stack) the run
/// tells.
bool dim_may_be_refused(const Call& call) {
  if (!call.info.aten || call.looks.empty() || !call.looks[0]) return false;
  const std::optional<int> arg = call.info.handle.schema().argumentIndexWithName("dim");
  if (!arg || !call.args[*arg].isInt()) return false;
  const int64_t dim = call.args[*arg].toInt();
  const auto rank = std::max<int64_t>(static_cast<int64_t>(call.looks[0]->sizes().size()), 1);
  return dim < -rank || dim >= rank;
}

/// (What is written in place looks as before: the kernel's word counts on what it refuses only.)
bool smaller_tells(const Call& call) {
  return makes_tensors(call.info) ? smaller_is_believed(call) : smaller_may_be_asked(call);
}

CallPlanRef infer_any(const Call& call);

CallPlanRef plan_of_draw_like(const Call& call) {
  const CallPlanRef like = infer_any(as_empty_like(call));
  if (!like || like->must_run || like->outputs.size() != 1 || like->outputs[0].kind != Kind::fresh)
    return nullptr;
  return plan_of_fresh(call, like->outputs[0].geometry);
}

CallPlanRef infer_any(const Call& call) {
  if (has_layout_of_kernel(call)) return nullptr;
  if (call.info.returns_plain || call.info.distrust_plans) return nullptr;
  const run::Doubts doubts = run::doubts_of(doubted_kind(call));
  if (doubts.layouts) return nullptr;
  if (writes_overlapping(call) || writes_of_another(call) || may_conjugate_given(call) ||
      names_option_of_gpus(call))
    return plan_that_must_run();
  if (draws_like(call)) return plan_of_draw_like(call);
  if (casts_in_kernel(call)) return kernel_can_be_tried(call) ? ask_kernel(call) : nullptr;
  MetaAnswer answer = MetaAnswer::none;
  if (structured_meta_is_right(call) && !doubts.structured) {
    CallPlanRef plan = ask_meta(call, For::structured_meta, answer);
    if (answer != MetaAnswer::none && !(plan && follows_a_copy(call, *plan))) return plan;
  }
  if (const auto results = told_by_one_element(call)) return plan_of_fresh(call, *results);
  if (kernel_can_be_tried(call)) return ask_kernel(call);
  if (smaller_tells(call)) {
    SmallerAnswer smaller = ask_kernel_on_smaller(call);
    // (Not all meta functions refuse what kernels do: rsub of a bool.)
    if (smaller.plan || smaller.refused) return std::move(smaller.plan);
  }
  // (Of a custom op its author's fake kernel is all there is to ask.)
  const bool distrusted = call.info.wrong_meta ||
                          (call.info.torchs && (call.info.lacks_meta || !meta_is_believed(call)));
  if (distrusted && makes_tensors(call.info)) return nullptr;
  if (out_may_be_refused(call) || dim_may_be_refused(call) || sizes_may_be_refused(call))
    return nullptr;
  CallPlanRef plan = ask_meta(call, For::meta, answer);
  if (answer == MetaAnswer::none && call.info.torchs) call.info.lacks_meta = true;
  return plan;
}

/// What a resize_ that eager refused leaves of a plain tensor: sizes that no tensor can have.
bool beyond_all_memory(const run::GeometryRef& look) {
  if (!look) return false;
  int64_t elements = 1;
  return std::any_of(look->sizes().begin(), look->sizes().end(), [&](int64_t size) {
    return __builtin_mul_overflow(elements, size, &elements);
  });
}

}  // namespace

CallPlanRef infer(const Call& call) {
  // (No stand-in can be made of it; the kernel knows what to say of it.)
  if (std::any_of(call.looks.begin(), call.looks.end(), beyond_all_memory)) return nullptr;
  CallPlanRef plan = infer_any(call);
  if (!plan || may_refuse_dtype(call, *plan) || !can_be_drawn(call) || !counts_between_bounds(call))
    return nullptr;
  // (Which kernels have no deterministic form is nowhere written but in them.)
  const bool may_be_refused = call.info.torchs && !may_be_nondeterministic() &&
                              !plan->only_metadata && plan->rewrites.empty();
  return may_be_refused ? nullptr : plan;
}

namespace {

bool left_written_as_they_were(const Call& call, const run::Node::Discovery& found) {
  return std::all_of(found.written.begin(), found.written.end(), [&](const auto& written) {
    const run::GeometryRef& look = call.looks[written.first];
    return look && run::matches(*look, written.second);
  });
}

bool agrees(const CallPlanRef& said, const Call& call, const run::Node::Discovery& found,
            bool exactly) {
  if (!said || said->must_run) return false;
  const std::vector<at::Tensor> inputs = real_arguments_of(call);
  auto made = make_ref<CallPlan>();
  return read_results(call, inputs, found.results, *made) &&
         said->list_lengths == made->list_lengths && said->numbers == made->numbers &&
         std::equal(said->outputs.begin(), said->outputs.end(), made->outputs.begin(),
                    made->outputs.end(),
                    [&](const OutputPlan& a, const OutputPlan& b) { return same(a, b, exactly); });
}

bool agrees(For whom, const Call& call, const run::Node::Discovery& found, bool exactly) {
  MetaAnswer answer = MetaAnswer::none;
  return agrees(ask_meta(call, whom, answer), call, found, exactly);
}

/// The op may be one of those whose results have as many elements as its arguments' values say
/// (boxes that are kept, neighbours that are near): a fake kernel raises then, and that an op has
/// none says nothing.
bool makes_what_values_decide(const Call& call) {
  if (call.info.torchs || !makes_tensors(call.info)) return false;
  MetaAnswer answer = MetaAnswer::none;
  if (!call.info.distrust_plans) ask_meta(call, For::meta, answer);
  return answer != MetaAnswer::given;
}

}  // namespace

CallPlanRef learn(const Call& call, const run::Node::Discovery& found) {
  if (call.info.data_dependent || !left_written_as_they_were(call, found)) return nullptr;
  if (makes_what_values_decide(call)) return nullptr;
  const std::vector<at::Tensor> inputs = real_arguments_of(call);
  auto plan = make_ref<CallPlan>();
  if (!read_results(call, inputs, found.results, *plan)) {
    plan = make_ref<CallPlan>();
    plan->must_run = true;
  }
  plan->only_metadata = !plan->must_run && nothing_to_run(call, *plan);
  add_doubt(call, *plan);
  add_costs(call, *plan);
  return plan;
}

void compare_with_meta(const Call& call, const run::Node::Discovery& found) {
  if (!call.info.torchs || !makes_tensors(call.info) || kernel_can_be_tried(call)) return;
  const CallPlanRef told = smaller_may_be_asked(call) ? ask_kernel_on_smaller(call).plan : nullptr;
  if (told)
    note_smaller(call, agrees(told, call, found, /*exactly=*/true));
  else if (!call.info.wrong_meta)
    note_run(call, [&](bool exactly) { return agrees(For::meta, call, found, exactly); });
}

bool structured_meta_agrees(const Call& call, const run::Node::Discovery& found) {
  return structured_meta_is_right(call) && agrees(For::structured_meta, call, found, true);
}

// (Without dims it is a number mostly, of its own dtype.)
void want_trials(const Call& call, uint64_t number) {
  for (const run::GeometryRef& look : call.looks)
    if (look && look->device().is_cpu() && !look->sizes().empty())
      fuse::want_trial(call.info, look->dtype(), look->numel(), number);
}

}  // namespace lazyeng::record
