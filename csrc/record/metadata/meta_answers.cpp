// csrc/record/metadata/meta_answers.cpp: meta functions and kernels on stand-ins, and what they
// return.
#include "csrc/record/metadata/meta_answers.h"

#include <ATen/ExpandUtils.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/strides.h>

#include "csrc/record/metadata/costs.h"
#include "csrc/record/metadata/doubts.h"
#include "csrc/record/metadata/number_range.h"
#include "csrc/record/metadata/probe.h"
#include "csrc/run/caller/caller_modes.h"
#include "csrc/run/cores/width.h"
#include "csrc/run/executor.h"
#include "csrc/run/failures/python_error.h"
#include "csrc/run/python_ref.h"

namespace lazyeng::record {
namespace {

using Kind = OutputPlan::Kind;

thread_local bool inside_structured_meta = false;

/// While one lives, kernels of ours that this thread reaches answer with stand-ins.
struct StructuredMeta {
  StructuredMeta() { inside_structured_meta = true; }
  ~StructuredMeta() { inside_structured_meta = false; }
};

/// `modes` are those that a kernel is to run with, or null.
void ask(const Call& call, For whom, const run::CallerModes* modes, torch::jit::Stack& stack) {
  run::RealDispatch below;
  std::optional<run::WithModes> casts;
  if (modes) casts.emplace(*modes);
  // What eager runs, on tensors without memory: more to be trusted than a meta function of its own,
  // and rarely written in Python.
  if (whom == For::meta && call.info.aten && call.info.made_of_ops)
    return call.info.handle.callBoxedForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd,
                                                    stack);
  if (whom != For::structured_meta) return call.info.handle.callBoxed(stack);
  const StructuredMeta scope;
  call.info.handle.callBoxedForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional,
                                           stack);
}

/// What was raised is dropped (the run that follows raises eager's own words), but not Ctrl-C.
MetaAnswer ask(const Call& call, For whom, const StandIns& stand_ins, torch::jit::Stack& stack,
               const run::CallerModes* modes = nullptr) {
  try {
    stack = stand_ins.arguments();
    ask(call, whom, modes, stack);
    return MetaAnswer::given;
  } catch (const c10::NotImplementedError&) {
    return MetaAnswer::none;
  } catch (const std::exception&) {
    if (run::is_interrupt(std::current_exception())) throw;
    if (run::is_python_error(std::current_exception())) {
      const run::Gil gil;
      PyErr_Clear();
    }
  }
  return MetaAnswer::refused;
}

std::vector<int64_t> strides_of_empty(const std::vector<int64_t>& sizes,
                                      const c10::IValue& memory_format) {
  if (memory_format.isInt()) {
    const c10::MemoryFormat format = memory_format.toMemoryFormat();
    if (format == c10::MemoryFormat::ChannelsLast) return c10::get_channels_last_strides_2d(sizes);
    if (format == c10::MemoryFormat::ChannelsLast3d)
      return c10::get_channels_last_strides_3d(sizes);
  }
  const c10::DimVector strides = c10::contiguous_strides(c10::IntArrayRef(sizes));
  return {strides.begin(), strides.end()};
}

/// What at::empty or at::empty_strided, called by a structured meta function, would return.
at::Tensor empty_stand_in(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const size_t count = op.schema().arguments().size();
  const bool strided = op.operator_name().name == "aten::empty_strided";
  TORCH_CHECK_NOT_IMPLEMENTED(strided || op.operator_name().name == "aten::empty",
                              "a structured meta function called ", op.operator_name().name);
  run::GeometryData g;
  const std::vector<int64_t> sizes = torch::jit::peek(stack, 0, count).toIntVector();
  const std::vector<int64_t> strides = strided ? torch::jit::peek(stack, 1, count).toIntVector()
                                               : strides_of_empty(sizes, stack.back());
  g.sizes.assign(sizes.begin(), sizes.end());
  g.strides.assign(strides.begin(), strides.end());
  const c10::IValue& dtype = torch::jit::peek(stack, strided ? 2 : 1, count);
  g.dtype = dtype.isNone() ? c10::get_default_dtype_as_scalartype() : dtype.toScalarType();
  return without_memory(For::structured_meta, no_memory(For::structured_meta, 0), g);
}

/// The op makes a view of its first argument, its only tensor.
bool makes_view(const c10::FunctionSchema& schema) {
  const auto is_tensor = [](const c10::Argument& argument) {
    return argument.type()->kind() == c10::TypeKind::TensorType;
  };
  return schema.returns().size() == 1 && is_tensor(schema.returns()[0]) &&
         schema.returns()[0].alias_info() && !schema.returns()[0].alias_info()->isWrite() &&
         is_tensor(schema.arguments()[0]) &&
         std::count_if(schema.arguments().begin(), schema.arguments().end(), is_tensor) == 1;
}

/// What such an op, called by a structured meta function, would return: views are the same on every
/// device.
at::Tensor view_stand_in(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  torch::jit::Stack args(stack.end() - op.schema().arguments().size(), stack.end());
  const at::Tensor of = args[0].toTensor();
  run::GeometryData g = run::geometry_of(of)->data();
  g.device = c10::kCPU;
  args[0] = run::tensor_over(no_memory(For::kernel, of.storage().nbytes()), *run::intern(g));
  op.callBoxed(args);
  return without_memory(For::structured_meta, of.storage(),
                        run::geometry_of(args[0].toTensor())->data());
}

c10::Device result_device(const Call& call) {
  for (size_t i = 0; i < call.args.size(); ++i)
    if (call.info.args[i].kind == run::ArgKind::device && call.args[i].isDevice())
      return call.args[i].toDevice();
  const run::Geometry* first = nullptr;
  for (const run::GeometryRef& look : call.looks) {
    if (!look) continue;
    if (!look->sizes().empty()) return look->device();  // a 0-dim CPU tensor goes with any device
    if (!first || look->device().type() != c10::kCPU) first = look.get();
  }
  return first ? first->device() : backing_device();
}

run::GeometryRef geometry_on(const at::Tensor& meta, c10::Device device) {
  run::GeometryData data = run::geometry_of(meta)->data();
  data.device = device;
  data.wrapped_number = false;
  return run::intern(data);
}

/// Reads the results, of a meta function or a kernel, against the tensors that went in.
class ResultReader {
 public:
  ResultReader(const Call& call, const std::vector<at::Tensor>& inputs,
               std::optional<c10::Device> device, CallPlan& plan,
               const StandIns* stand_ins = nullptr)
      : call_(call), inputs_(inputs), device_(device), plan_(plan), stand_ins_(stand_ins) {}

  bool read(const torch::jit::Stack& results) {
    for (size_t r = 0; r < call_.info.returns.size(); ++r) {
      const run::ReturnInfo& info = call_.info.returns[r];
      if (info.written_arg >= 0) continue;
      if (info.number && results[r].isInt()) {
        plan_.numbers.push_back(results[r].toInt());
        continue;
      }
      if (!info.tensor) return false;
      if (!info.list) {
        if (!add(info, results[r].isNone() ? at::Tensor() : results[r].toTensor())) return false;
        continue;
      }
      const std::vector<at::Tensor> list = results[r].toTensorVector();
      plan_.list_lengths.push_back(static_cast<int64_t>(list.size()));
      for (const at::Tensor& tensor : list)
        if (!add(info, tensor)) return false;
    }
    return true;
  }
  /// Among them is a view that the schema does not tell of.
  bool has_unannounced_views() const { return has_unannounced_views_; }

 private:
  bool add(const run::ReturnInfo& info, const at::Tensor& tensor) {
    if (!tensor.defined()) {
      plan_.outputs.push_back({Kind::undefined, 0, nullptr, 0});
      return true;
    }
    if (tensor.layout() != c10::kStrided || tensor.is_quantized() || tensor.is_nested() ||
        !tensor.has_storage() || tensor.key_set().has(c10::DispatchKey::Python))
      return false;
    OutputPlan output{Kind::fresh, 0, geometry_on(tensor, device_.value_or(tensor.device())), 0};
    for (size_t i = 0; i < inputs_.size(); ++i)
      if (inputs_[i].defined() && inputs_[i].has_storage() &&
          inputs_[i].storage().is_alias_of(tensor.storage())) {
        if (!call_.tensors[i].value) return false;  // a view of something that has no var
        has_unannounced_views_ |= !info.may_alias;
        output.kind = Kind::view;
        output.of = static_cast<uint32_t>(i);
        output.seen_at = call_.looks[i]->offset();
        output.geometry = stand_ins_ ? stand_ins_->look_of(tensor, i) : run::geometry_of(tensor);
        break;
      }
    plan_.outputs.push_back(std::move(output));
    return true;
  }

  const Call& call_;
  const std::vector<at::Tensor>& inputs_;
  const std::optional<c10::Device> device_;
  CallPlan& plan_;
  const StandIns* const stand_ins_;
  bool has_unannounced_views_ = false;
};

void add_rewrites(const Call& call, const StandIns& stand_ins, CallPlan& plan) {
  for (uint32_t i = 0; i < call.tensors.size(); ++i) {
    if (!call.tensors[i].written || !call.looks[i]) continue;
    run::GeometryRef after = stand_ins.look_of(stand_ins.tensors()[i], i);
    if (!(after == call.looks[i])) plan.rewrites.push_back({i, std::move(after)});
  }
}

}  // namespace

bool read_results(const Call& call, const std::vector<at::Tensor>& inputs,
                  const torch::jit::Stack& results, CallPlan& plan) {
  return ResultReader(call, inputs, std::nullopt, plan).read(results);
}

bool nothing_to_run(const Call& call, const CallPlan& plan) {
  bool views = false;
  for (const OutputPlan& output : plan.outputs) {
    if (output.kind == Kind::fresh) return false;
    views |= output.kind == Kind::view;
  }
  // (One that returns nothing, or None, is called for what it does.)
  if (!call.info.writes) return views && !call.info.random;
  if (!call.info.moves_metadata) return false;
  for (const CallPlan::Rewrite& rewrite :
       plan.rewrites)  // resize_ beyond the storage has work to do
    if (rewrite.after->extent_bytes() > call.tensors[rewrite.tensor].value->var().nbytes())
      return false;
  return true;
}

void add_doubt(const Call& call, CallPlan& plan) {
  plan.kind = doubted_kind(call);
  plan.stamp = run::doubts_stamp(plan.kind);
}

namespace {

/// A plan if the answer was given and no doubt is left.
CallPlanRef plan_from(const Call& call, For whom, const StandIns& stand_ins,
                      const torch::jit::Stack& results) {
  if (!stand_ins.kept_storages()) return nullptr;  // set_ and its like
  auto plan = make_ref<CallPlan>();
  const std::optional<c10::Device> device =
      whom == For::kernel ? std::nullopt : std::optional(result_device(call));
  ResultReader reader(call, stand_ins.tensors(), device, *plan, &stand_ins);
  if (!reader.read(results)) {
    plan->must_run = true;
    return plan;
  }
  // (Decompositions return their argument where the kernel copies it: channel_shuffle of one
  // group.)
  if (whom != For::kernel && reader.has_unannounced_views()) return nullptr;
  add_rewrites(call, stand_ins, *plan);
  // An out= argument of another shape warns, and that once.
  plan->must_run = !plan->rewrites.empty() && !call.info.moves_metadata;
  plan->only_metadata = nothing_to_run(call, *plan);
  add_doubt(call, *plan);
  add_costs(call, *plan);
  return plan;
}

/// Whether the kernel may refuse dtypes, or ranges to draw from, that this meta function takes.
bool meta_takes_more(const run::OpInfo& info, For whom) {
  return whom == For::structured_meta ||
         (whom == For::meta && info.aten && (info.pointwise || (info.random && info.writes)));
}

/// Which tensor of the call is added to a product; none: -1.
int summand_of(const run::OpInfo& info) {
  if (info.base == "aten::addmm" || info.base == "aten::_addmm_activation") return 0;
  return info.base == "aten::linear" ? 2 : -1;
}

/// What is added to nothing is returned as it is.
bool is_added_to_nothing(const Call& call) {
  return call.info.base == "aten::addmv" && call.looks[1] && call.looks[1]->numel() == 0;
}

/// The meta functions of products do not look whether what is added fits.
bool summand_fits(const Call& call, const CallPlan& plan) {
  if (is_added_to_nothing(call)) return false;
  const int summand = summand_of(call.info);
  if (summand < 0 || !call.looks[summand] || plan.outputs.empty() || !plan.outputs[0].geometry)
    return true;
  return at::is_expandable_to(call.looks[summand]->sizes(), plan.outputs[0].geometry->sizes());
}

/// Whether a kernel refuses what its meta function took.
bool refused_by_kernel(const Call& call, For whom) {
  // (fill_ of one element is done by another kernel: no trial tells.)
  if (some_are_empty(call) && has_reals_for_integers(call)) return true;
  if (!numbers_fit(call)) return call.info.writes || kernel_may_refuse(call);
  return meta_takes_more(call.info, whom) ? kernel_may_refuse(call)
                                          : kernel_may_refuse_dtypes(call);
}

}  // namespace

CallPlanRef ask_meta(const Call& call, For whom, MetaAnswer& answer) {
  const StandIns stand_ins(call, whom);
  torch::jit::Stack stack;
  answer = ask(call, whom, stand_ins, stack);
  if (answer != MetaAnswer::given) return nullptr;
  CallPlanRef plan = plan_from(call, whom, stand_ins, stack);
  const bool records = plan && !plan->only_metadata && !plan->must_run;
  return records && (!summand_fits(call, *plan) || refused_by_kernel(call, whom)) ? nullptr : plan;
}

CallPlanRef ask_kernel(const Call& call) {
  // A team of helpers of this thread's own would keep those of the engine's threads from spinning.
  const run::OneCore one(at::get_num_threads());
  const run::CallerModes modes = run::CallerModes::of_this_thread();
  for (int integers : {0, 1}) {
    run::RealDispatch below;
    const StandIns stand_ins(call, For::kernel, integers);
    torch::jit::Stack stack;
    if (ask(call, For::kernel, stand_ins, stack, call.info.calls_cast_ops ? &modes : nullptr) ==
        MetaAnswer::given)
      return plan_from(call, For::kernel, stand_ins, stack);
  }
  return nullptr;
}

bool answer_structured_meta(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (!inside_structured_meta) return false;
  const c10::FunctionSchema& schema = op.schema();
  const size_t count = schema.arguments().size();
  torch::jit::Stack answer;
  for (size_t i = 0; i < count; ++i)
    if (schema.arguments()[i].alias_info() && schema.arguments()[i].alias_info()->isWrite())
      answer.push_back(torch::jit::peek(*stack, i, count));
  if (answer.empty())
    answer.emplace_back(makes_view(schema) ? view_stand_in(op, *stack)
                                           : empty_stand_in(op, *stack));
  torch::jit::drop(*stack, count);
  for (size_t r = 0; r < schema.returns().size() && r < answer.size(); ++r)
    stack->push_back(std::move(answer[r]));
  return true;
}

}  // namespace lazyeng::record
