// csrc/record/infer.cpp: asking meta functions what an op will return.
#include "csrc/record/infer.h"

#include <ATen/ATen.h>
#include <c10/core/DefaultDtype.h>
#include <torch/csrc/Exceptions.h>

#include "csrc/record/probe.h"
#include "csrc/run/executor.h"
#include "csrc/run/python_ref.h"

namespace lazyeng::record {
namespace {

using Kind = OutputPlan::Kind;

/// Who is asked: each kind of meta function wants tensors of its own kind.
enum class Asked : uint8_t {
  structured,  ///< tensors of the device "lazyeng" without memory: what the function calls comes to
               ///< us
  meta,        ///< tensors of torch's meta device
};

at::Tensor without_memory(Asked asked, const c10::Storage& storage, const run::GeometryData& g) {
  const auto key =
      asked == Asked::structured ? c10::DispatchKey::PrivateUse1 : c10::DispatchKey::Meta;
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet({key, c10::DispatchKey::ADInplaceOrView}),
      c10::scalarTypeToTypeMeta(g.dtype));
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(g.sizes, g.strides, g.offset);
  if (g.conj) impl->_set_conj(true);
  if (g.neg) impl->_set_neg(true);
  return tensor;
}

c10::Storage no_memory(Asked asked, uint64_t nbytes) {
  const c10::Device device =
      asked == Asked::structured ? c10::Device(c10::kPrivateUse1, 0) : c10::Device(c10::kMeta);
  return c10::Storage(c10::Storage::use_byte_size_t(), nbytes, at::DataPtr(nullptr, device),
                      c10::GetAllocator(c10::kMeta), true);
}

/// Stand-ins for the arguments. Tensors that share a storage get stand-ins that share one, so that
/// views are recognised and overlaps are complained about.
class StandIns {
 public:
  StandIns(const Call& call, Asked asked) : call_(call), asked_(asked) {}

  at::Tensor next() {
    const size_t i = tensors_.size();
    at::Tensor tensor;
    if (call_.looks[i]) tensor = make(i);
    tensors_.push_back(tensor);
    return tensor;
  }
  const std::vector<at::Tensor>& all() const { return tensors_; }
  Asked asked() const { return asked_; }

 private:
  at::Tensor make(size_t i) {
    const run::GeometryData& g = call_.looks[i]->data();
    // Python's meta functions want to see the numbers.
    return g.wrapped_number ? call_.tensors[i].raw : without_memory(asked_, storage_for(i), g);
  }

  c10::Storage storage_for(size_t i) {
    const run::ValueRef& value = call_.tensors[i].value;
    for (size_t j = 0; value && j < i; ++j)
      if (call_.tensors[j].value && call_.tensors[j].value->var_ref() == value->var_ref())
        return tensors_[j].storage();
    return no_memory(asked_, value ? value->var().nbytes() : call_.looks[i]->extent_bytes());
  }

  const Call& call_;
  const Asked asked_;
  std::vector<at::Tensor> tensors_;
};

c10::IValue meta_list(StandIns& metas, int64_t length, bool optional) {
  c10::List<std::optional<at::Tensor>> maybe;
  c10::List<at::Tensor> plain;
  for (int64_t i = 0; i < length; ++i) {
    at::Tensor tensor = metas.next();
    if (!optional)
      plain.push_back(tensor);
    else
      maybe.push_back(tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt);
  }
  return optional ? c10::IValue(maybe) : c10::IValue(plain);
}

torch::jit::Stack meta_arguments(const Call& call, StandIns& metas) {
  torch::jit::Stack stack;
  for (size_t i = 0; i < call.args.size(); ++i) {
    const c10::IValue& arg = call.args[i];
    switch (call.info.args[i].kind) {
      case run::ArgKind::tensor: {
        at::Tensor tensor = metas.next();
        stack.push_back(tensor.defined() ? c10::IValue(tensor) : arg);
        break;
      }
      case run::ArgKind::tensor_list:
      case run::ArgKind::optional_tensor_list:
        stack.push_back(
            arg.isNone() ? arg
                         : meta_list(metas, arg.toInt(),
                                     call.info.args[i].kind == run::ArgKind::optional_tensor_list));
        break;
      case run::ArgKind::generator:
        stack.emplace_back();
        break;
      case run::ArgKind::device:
        stack.push_back(arg.isNone() ? arg : c10::IValue(c10::Device(c10::kMeta)));
        break;
      default:
        stack.push_back(arg);
    }
  }
  return stack;
}

thread_local bool inside_structured_meta = false;

/// While one lives, kernels of ours that this thread reaches answer with stand-ins.
struct StructuredMeta {
  StructuredMeta() { inside_structured_meta = true; }
  ~StructuredMeta() { inside_structured_meta = false; }
};

void ask(const Call& call, Asked asked, torch::jit::Stack& stack) {
  run::RealDispatch below;
  if (asked == Asked::meta) return call.info.handle.callBoxed(stack);
  const StructuredMeta scope;
  call.info.handle.callBoxedForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional,
                                           stack);
}

enum class Answer : uint8_t { given, none, refused };

/// What was raised is dropped: the run that follows raises eager's own words.
Answer call_meta(const Call& call, StandIns& metas, torch::jit::Stack& stack) {
  try {
    stack = meta_arguments(call, metas);
    ask(call, metas.asked(), stack);
    return Answer::given;
  } catch (python_error& error) {
    run::Gil gil;
    error.restore();
    PyErr_Clear();
  } catch (const c10::NotImplementedError&) {
    return Answer::none;
  } catch (const std::exception&) {
  }
  return Answer::refused;
}

/// What at::empty or at::empty_strided, called by a structured meta function, would return.
at::Tensor empty_stand_in(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const size_t count = op.schema().arguments().size();
  const bool strided = op.operator_name().name == "aten::empty_strided";
  TORCH_CHECK_NOT_IMPLEMENTED(strided || op.operator_name().name == "aten::empty",
                              "a structured meta function called ", op.operator_name().name);
  run::GeometryData g;
  const std::vector<int64_t> sizes = torch::jit::peek(stack, 0, count).toIntVector();
  g.sizes.assign(sizes.begin(), sizes.end());
  if (strided) {
    const std::vector<int64_t> strides = torch::jit::peek(stack, 1, count).toIntVector();
    g.strides.assign(strides.begin(), strides.end());
  } else {
    g.strides.resize(sizes.size());
    int64_t step = 1;
    for (size_t i = sizes.size(); i-- > 0; step *= std::max<int64_t>(sizes[i], 1))
      g.strides[i] = step;
  }
  const c10::IValue& dtype = torch::jit::peek(stack, strided ? 2 : 1, count);
  g.dtype = dtype.isNone() ? c10::get_default_dtype_as_scalartype() : dtype.toScalarType();
  return without_memory(Asked::structured, no_memory(Asked::structured, 0), g);
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
  return run::intern(std::move(data));
}

/// Reads one result, meta or real, against the tensors that went in.
class ResultReader {
 public:
  ResultReader(const Call& call, const std::vector<at::Tensor>& inputs,
               std::optional<c10::Device> device, Plan& plan)
      : call_(call), inputs_(inputs), device_(device), plan_(plan) {}

  bool read(const torch::jit::Stack& results) {
    for (size_t r = 0; r < call_.info.returns.size(); ++r) {
      const run::ReturnInfo& info = call_.info.returns[r];
      if (info.written_arg >= 0) continue;
      if (!info.tensor) return false;
      if (!info.list) {
        if (!add(results[r].isNone() ? at::Tensor() : results[r].toTensor())) return false;
        continue;
      }
      const std::vector<at::Tensor> list = results[r].toTensorVector();
      plan_.list_lengths.push_back(static_cast<int64_t>(list.size()));
      for (const at::Tensor& tensor : list)
        if (!add(tensor)) return false;
    }
    return true;
  }

 private:
  bool add(const at::Tensor& tensor) {
    if (!tensor.defined()) {
      plan_.outputs.push_back({Kind::undefined, 0, nullptr});
      return true;
    }
    if (tensor.layout() != c10::kStrided || tensor.is_quantized() || !tensor.has_storage())
      return false;
    OutputPlan output{Kind::fresh, 0, geometry_on(tensor, device_.value_or(tensor.device()))};
    for (size_t i = 0; i < inputs_.size(); ++i)
      if (inputs_[i].defined() && inputs_[i].has_storage() &&
          inputs_[i].storage().is_alias_of(tensor.storage())) {
        if (!call_.tensors[i].value) return false;  // a view of something that has no var
        output.kind = Kind::view;
        output.of = static_cast<uint32_t>(i);
        output.geometry = geometry_on(tensor, call_.looks[i]->device());
        break;
      }
    plan_.outputs.push_back(std::move(output));
    return true;
  }

  const Call& call_;
  const std::vector<at::Tensor>& inputs_;
  const std::optional<c10::Device> device_;
  Plan& plan_;
};

void add_rewrites(const Call& call, const std::vector<at::Tensor>& metas, Plan& plan) {
  for (uint32_t i = 0; i < call.tensors.size(); ++i) {
    if (!call.tensors[i].written || !metas[i].defined()) continue;
    run::GeometryRef after = geometry_on(metas[i], call.looks[i]->device());
    if (!(after == call.looks[i])) plan.rewrites.push_back({i, std::move(after)});
  }
}

bool nothing_to_run(const Call& call, const Plan& plan) {
  for (const OutputPlan& output : plan.outputs)
    if (output.kind == Kind::fresh) return false;
  if (!call.info.writes) return !plan.outputs.empty() && !call.info.random;
  if (!call.info.moves_metadata) return false;
  for (const Plan::Rewrite& rewrite : plan.rewrites)  // resize_ beyond the storage has work to do
    if (rewrite.after->extent_bytes() > call.tensors[rewrite.tensor].value->var().nbytes())
      return false;
  return true;
}

}  // namespace

namespace {

/// The answer in `answer`; a plan if it was given and no doubt is left.
PlanRef infer_from(const Call& call, Asked asked, Answer& answer) {
  StandIns metas(call, asked);
  torch::jit::Stack stack;
  answer = call_meta(call, metas, stack);
  if (answer != Answer::given) return nullptr;
  auto plan = make_ref<Plan>();
  if (!ResultReader(call, metas.all(), result_device(call), *plan).read(stack)) {
    plan->run_now = true;
    return plan;
  }
  add_rewrites(call, metas.all(), *plan);
  // Meta functions resize an out= argument in ways of their own.
  plan->run_now = !plan->rewrites.empty() && !call.info.moves_metadata;
  plan->only_metadata = nothing_to_run(call, *plan);
  if (!plan->only_metadata && !plan->run_now && kernel_may_refuse(call)) return nullptr;
  return plan;
}

}  // namespace

bool answer_structured_meta(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (!inside_structured_meta) return false;
  const c10::FunctionSchema& schema = op.schema();
  const size_t count = schema.arguments().size();
  torch::jit::Stack answer;
  for (size_t i = 0; i < count; ++i)
    if (schema.arguments()[i].alias_info() && schema.arguments()[i].alias_info()->isWrite())
      answer.push_back(torch::jit::peek(*stack, i, count));
  if (answer.empty()) answer.emplace_back(empty_stand_in(op, *stack));
  torch::jit::drop(*stack, count);
  for (size_t r = 0; r < schema.returns().size() && r < answer.size(); ++r)
    stack->push_back(std::move(answer[r]));
  return true;
}

namespace {

bool makes_tensors(const run::OpInfo& info) {
  return std::any_of(info.returns.begin(), info.returns.end(), [](const run::ReturnInfo& result) {
    return result.tensor && result.written_arg < 0;
  });
}

/// A dim of one element may have any stride, which kernels hand on to their results and meta
/// functions written in Python do not: what such a call returns is learned from a run.
bool has_odd_strides(const Call& call) {
  for (const run::GeometryRef& look : call.looks) {
    if (!look) continue;
    const c10::IntArrayRef sizes = look->sizes();
    for (size_t d = 0; d < sizes.size(); ++d) {
      const int64_t usual = d + 1 < sizes.size() ? sizes[d + 1] * look->strides()[d + 1] : 1;
      if (sizes[d] == 1 && look->strides()[d] != usual) return true;
    }
  }
  return false;
}

}  // namespace

PlanRef infer(const Call& call) {
  if (call.info.distrust_meta || call.info.returns_plain) return nullptr;
  Answer answer = Answer::none;
  if (call.info.structured_meta && !call.info.distrust_structured) {
    PlanRef plan = infer_from(call, Asked::structured, answer);
    if (answer != Answer::none) return plan;
  }
  if (makes_tensors(call.info) && has_odd_strides(call)) return nullptr;
  return infer_from(call, Asked::meta, answer);
}

PlanRef learn(const Call& call, const run::Node::Discovery& found) {
  if (call.info.data_dependent || call.info.writes) return nullptr;
  std::vector<at::Tensor> inputs;
  for (const run::TensorArg& arg : call.tensors)
    inputs.push_back(arg.value ? arg.value->real() : arg.raw);
  auto plan = make_ref<Plan>();
  if (!ResultReader(call, inputs, std::nullopt, *plan).read(found.results)) {
    plan = make_ref<Plan>();
    plan->run_now = true;
  }
  plan->only_metadata = !plan->run_now && nothing_to_run(call, *plan);
  return plan;
}

}  // namespace lazyeng::record
