// csrc/record/special/collectives.cpp: torch.distributed's operations on lazy tensors.
//
// A collective is recorded as any op (csrc/run/collective.h has its run). Of those that return a
// Work the schemas do not say what is written (csrc/run/op_info.cpp does), and the caller gets a
// Work of ours (recorded_work.h).
//
// Called at the call, once everything recorded is complete, and with tensors over the real memory:
// in mode sync; what a backend may refuse (collective_shapes.h); barriers, and what else waits for
// other processes; collectives that write plain tensors outside of blocks, or buckets of gradients
// (reducers.h). From then on the rules are eager's: nobody touches that memory before the Work
// ends. So are those that have no lazy tensor, which must not overtake what is recorded.
#include "csrc/record/special/collectives.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <unordered_map>

#include "csrc/record/lazy_tensor.h"
#include "csrc/record/library.h"
#include "csrc/record/process/gate.h"
#include "csrc/record/recorded_work.h"
#include "csrc/record/recorder.h"
#include "csrc/record/special/collective_shapes.h"
#include "csrc/record/special/reducers.h"
#include "csrc/run/caller/caller_modes.h"
#include "csrc/run/executor.h"
#include "csrc/run/failures/ignored_warnings.h"
#include "csrc/run/plain/plain_storage.h"

namespace lazyeng::record {
namespace {

/// What each tensor is given in place of the lazy one, and back.
class RealArguments {
 public:
  explicit RealArguments(const torch::jit::Stack& arguments) {
    for (const c10::IValue& argument : arguments)
      stack_.push_back(mapped(argument, [this](const at::Tensor& t) { return real(t); }));
  }

  torch::jit::Stack& stack() { return stack_; }

  /// The same tensors come back as went in.
  c10::IValue lazy_again(const c10::IValue& result) const {
    return mapped(result, [this](const at::Tensor& tensor) {
      const auto found = lazy_.find(tensor.unsafeGetTensorImpl());
      return found == lazy_.end() ? tensor : found->second;
    });
  }

 private:
  at::Tensor real(const at::Tensor& tensor) {
    const LazyImpl* const lazy = lazy_impl(tensor);
    if (!lazy) return tensor;
    current_recorder()->wait_and_check(*lazy->value());
    at::Tensor plain = current_recorder()->hand_out(*lazy->value());
    lazy_.emplace(plain.unsafeGetTensorImpl(), tensor);
    return plain;
  }

  /// `function` of each tensor, also in lists and in lists of lists.
  template <class Function>
  static c10::IValue mapped(const c10::IValue& value, const Function& function) {
    if (value.isTensor()) return function(value.toTensor());
    if (!value.isList()) return value;
    const c10::List<c10::IValue> list = value.toList();
    c10::impl::GenericList result(list.elementType());
    for (const c10::IValue& item : list.vec()) result.push_back(mapped(item, function));
    return result;
  }

  torch::jit::Stack stack_;
  std::unordered_map<c10::TensorImpl*, at::Tensor> lazy_;
};

bool is_of(const c10::OperatorName& name, std::string_view name_space) {
  return name.name.rfind(name_space, 0) == 0;
}

void call_collective(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t count = op.schema().arguments().size();
  // Reads that are pending look at what the backend may write, so the last write is not enough.
  current_recorder()->wait_for_all();
  RealArguments arguments(torch::jit::pop(*stack, count));
  {
    const run::RealDispatch below;
    op.callBoxed(&arguments.stack());
  }
  for (const c10::IValue& result : arguments.stack())
    stack->push_back(arguments.lazy_again(result));
}

thread_local bool at_the_call = false;

/// Null: it cannot be recorded.
std::optional<Call> recordable_call(const run::OpInfo& info, const torch::jit::Stack& arguments) {
  if (info.collective != run::Collectivity::work || at_the_call ||
      thread_mode().mode == Mode::sync || !is_accepted(info, arguments))
    return std::nullopt;
  torch::jit::Stack stack = arguments;
  Call call = read_call(info, &stack);
  if (reduces_bucket(call) || call.must_run || (call.writes_plain && !thread_mode().inside()))
    return std::nullopt;
  return call;
}

/// The caller waits by itself, later: other than with async_op=False.
bool is_asynchronous(const run::OpInfo& info, const torch::jit::Stack& arguments) {
  const std::vector<c10::Argument>& schema = info.handle.schema().arguments();
  for (size_t i = 0; i < schema.size(); ++i)
    if (schema[i].name() == "async_op") return arguments[i].toBool();
  return true;
}

void record_collective(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const Gate::Inside inside;
  const run::OpInfo& info = info_of(op);
  const torch::jit::Stack arguments(stack->end() - static_cast<ptrdiff_t>(info.args.size()),
                                    stack->end());
  std::optional<Call> call = recordable_call(info, arguments);
  if (!call) return call_collective(op, stack);
  torch::jit::drop(*stack, info.args.size());
  call->collective = make_ref<run::Collective>(info, order_of_collectives());
  const auto work = c10::make_intrusive<RecordedWork>(*call, is_asynchronous(info, arguments));
  static const CallPlan nothing_new;
  current_recorder()->record_plan(*call, nothing_new, stack);
  stack->emplace_back(c10::intrusive_ptr<c10d::Work>(work));
}

/// A lazy tensor is waited for where it is read.
void already_waits(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (!lazy_impl(stack->back().toTensor())) call_collective(op, stack);
}

/// Whether the engine knows the memory of a plain tensor in there.
bool is_known(const c10::IValue& value) {
  if (value.isTensor())
    return recordable(value.toTensor()) && run::plain_storages().find(value.toTensor());
  if (!value.isList()) return false;
  const c10::ArrayRef<c10::IValue> items = value.toListRef();
  return std::any_of(items.begin(), items.end(), is_known);
}

/// c10d's own kernels for plain tensors of one backend, which ours stand before.
template <c10::DispatchKey backend>
std::unordered_map<c10::OperatorName, c10::SafeKernelFunction>& kernels_of_c10d() {
  static auto* const kernels = new std::unordered_map<c10::OperatorName, c10::SafeKernelFunction>;
  return *kernels;
}

/// Plain tensors outside of blocks. The backend begins this one at once: in the other processes
/// what was recorded before may have begun first. And it writes memory without a trace, so that a
/// pending read could not tell.
template <c10::DispatchKey backend>
void call_in_order(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                   torch::jit::Stack* stack) {
  if (!run::RealDispatch::active() && !run::InCustomKernel::active()) {
    const auto begin = stack->end() - static_cast<ptrdiff_t>(op.schema().arguments().size());
    if (order_of_collectives()->awaited()) current_recorder()->wait_for(*order_of_collectives());
    if (std::any_of(begin, stack->end(), is_known)) current_recorder()->wait_for_all();
  }
  kernels_of_c10d<backend>().at(op.operator_name()).callBoxed(op, keys, stack);
}

/// In front of the backend itself, as keys above it are left out below a `__torch_dispatch__` and
/// in inference mode.
template <c10::DispatchKey backend>
void stand_before(const c10::OperatorHandle& op, torch::Library& library) {
  if (!op.hasKernelForDispatchKey(backend)) return;
  kernels_of_c10d<backend>().emplace(op.operator_name(),
                                     op.getComputedKernelForDispatchKey(backend));
  library.impl(without_namespace(op.operator_name()).c_str(),
               torch::CppFunction::makeFromBoxedFunction<&call_in_order<backend>>());
}

struct Libraries {
  torch::Library at(c10::DispatchKey key) const {
    return torch::Library(torch::Library::IMPL, name_space, key, __FILE__, __LINE__);
  }

  explicit Libraries(const char* of) : name_space(of) {
    ours.push_back(at(c10::DispatchKey::PrivateUse1));
    for (const OtherLayout& layout : kOtherLayouts) ours.push_back(at(layout.ours));
  }

  const char* name_space;
  std::vector<torch::Library> ours;
  torch::Library cpu = at(c10::DispatchKey::CPU), cuda = at(c10::DispatchKey::CUDA);
};

/// Ops that c10d has kernels for, for our key as for those backends: ours replace them; the
/// dispatcher warns of that. (The functional ones call those of c10d.)
void take_over(Libraries& libraries) {
  const run::IgnoredWarnings silent;
  const std::string prefix = std::string(libraries.name_space) + "::";
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!is_of(name, prefix)) continue;
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op || !op->hasSchema()) continue;
    for (torch::Library& library : libraries.ours)
      if (std::optional<torch::CppFunction> kernel = collective_kernel(*op))
        library.impl(without_namespace(name).c_str(), std::move(*kernel));
    if (prefix != "c10d::") continue;
    stand_before<c10::DispatchKey::CPU>(*op, libraries.cpu);
    stand_before<c10::DispatchKey::CUDA>(*op, libraries.cuda);
  }
}

}  // namespace

std::optional<torch::CppFunction> collective_kernel(const c10::OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  if (is_of(name, "_c10d_functional::wait_tensor") ||
      is_of(name, "_c10d_functional::_wrap_tensor_autograd"))
    return torch::CppFunction::makeFromBoxedFunction<&already_waits>();
  if (is_of(name, "c10d::")) return torch::CppFunction::makeFromBoxedFunction<&record_collective>();
  if (is_of(name, "_c10d_functional::") && info_of(op).collective == run::Collectivity::none)
    return torch::CppFunction::makeFromBoxedFunction<&call_collective>();
  return std::nullopt;
}

const run::StorageVarRef& order_of_collectives() {
  static const auto* const var =
      new run::StorageVarRef(make_ref<run::StorageVar>(run::StorageVar::generator_tag()));
  return *var;
}

void set_collectives_at_the_call(bool on) { at_the_call = on; }

void register_collectives() {
  for (const char* name_space : {"c10d", "_c10d_functional"})
    take_over(*new Libraries(name_space));  // for good
}

}  // namespace lazyeng::record
