// csrc/run/node.cpp: life of a recorded call on an engine thread.
#include "csrc/run/node.h"

#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "csrc/run/caller/caller_modes.h"
#include "csrc/run/device/free_memory.h"
#include "csrc/run/device/launch_log.h"
#include "csrc/run/device/launch_order.h"
#include "csrc/run/device/own_kernels.h"
#include "csrc/run/executor.h"
#include "csrc/run/failures/failure_log.h"
#include "csrc/run/failures/ignored_warnings.h"
#include "csrc/run/failures/kernel_warnings.h"
#include "csrc/run/failures/python_error.h"
#include "csrc/run/plain/plain_storage.h"
#include "csrc/run/python_ref.h"
#include "csrc/run/traces/stream_trace.h"
#include "csrc/run/traces/torch_profiler.h"
#include "csrc/run/traces/trace.h"

namespace lazyeng::run {
namespace {

/// A collective that gives this process nothing.
bool sends(const Node& node) {
  return node.collective && std::none_of(node.tensors.begin(), node.tensors.end(),
                                         [](const TensorArg& arg) { return arg.written; });
}

/// What failed is what was to be written to plain tensors in a lazy() block.
std::vector<Ref<engine::Var>> plain_vars_written(const Node& node) {
  std::vector<Ref<engine::Var>> vars;
  if (node.writes_plain && node.block != 0)
    for (const TensorArg& arg : node.tensors)
      if (arg.written && arg.plain) vars.push_back(arg.value->var_ref());
  return vars;
}

/// Of lazy tensors that it was to write in a block, those of memory that the program has used as
/// plain tensors there: views of these, for one.
std::vector<Ref<engine::Var>> vars_used_as_plain(const Node& node) {
  std::vector<Ref<engine::Var>> vars;
  if (node.block != 0)
    for (const TensorArg& arg : node.tensors)
      if (arg.written && arg.value &&
          arg.value->var().used_as_plain.load(std::memory_order_relaxed))
        vars.push_back(arg.value->var_ref());
  return vars;
}

/// While its kernel runs: what that reaches through the user face, as plain tensors that are
/// written are passed themselves, and sparse ones as they are.
class UserFaces {
 public:
  explicit UserFaces(const Node& node) : collective_(node.collective) {
    if (!node.discovery) return;
    for (const TensorArg& arg : node.tensors)
      if (arg.written && arg.raw.defined() && arg.value) vars_.push_back(&arg.value->var());
    for (const StorageVarRef& var : node.components) vars_.push_back(var.get());
    for (StorageVar* const var : vars_)
      collective_ ? plain_storages().lift_for_writer(*var) : plain_storages().enter(*var);
  }
  ~UserFaces() {
    if (collective_) return;
    for (StorageVar* const var : vars_) plain_storages().leave(*var);
  }
  UserFaces(const UserFaces&) = delete;
  UserFaces& operator=(const UserFaces&) = delete;

 private:
  const bool collective_;
  c10::SmallVector<StorageVar*, 4> vars_;  // kept by the claims of the node
};

bool nobody_holds(const Node& node) {
  if (node.discovery) return true;
  for (const ValueRef& value : node.outputs)
    if (value && (value->use_count() > 1 || value->var_ref()->use_count() > 2)) return false;
  return !node.outputs.empty() || sends(node);
}

}  // namespace

std::string Node::label() const { return info.short_name + "#" + std::to_string(number); }

void Node::check_plain_reads() const {
  for (const PlainRead& read : plain_reads)
    TORCH_CHECK(
        read.var->foreign_writes() <= read.foreign_writes &&
            !plain_storages().has_moved_under(*read.var),
        "[", info.name,
        "] a plain tensor that it reads was changed in place after the operation was recorded "
        "and before it ran; change it inside lazyeng.lazy(), or call lazyeng.synchronize() first");
}

/// A failure that this op is about to overwrite, and that nobody has seen, must not go unseen.
void Node::keep_overwritten_failures() const {
  for (const StorageVar* var : written_vars)
    if (engine::FailurePtr failure = var->failure())
      failure_log().add(static_cast<const OpFailure&>(*failure).root(), FailureLog::Holder::log);
}

/// Until it has nothing to do.
static void synchronize(const c10::Stream& stream) {
  c10::impl::VirtualGuardImpl(stream.device_type()).synchronizeStream(stream);
}

void Node::share_resizability() const {
  for (const TensorArg& arg : tensors)
    if (discovery && arg.written && arg.value)
      plain_storages().share_resizability(arg.value->var());
  for (const Rewrite& rewrite : rewrites) plain_storages().share_resizability(rewrite.after->var());
}

void Node::follow_resizes() const {
  for (const TensorArg& arg : tensors)
    if ((discovery || info.takes_out) && arg.written && arg.value)
      plain_storages().follow_resize(arg.value->var(), arg.raw.defined());
  for (const Rewrite& rewrite : rewrites)
    plain_storages().follow_resize(rewrite.after->var(), false);
  for (const StorageVarRef& var : components) plain_storages().follow_resize(*var, true);
}

void Node::call_kernel(torch::jit::Stack& stack) const {
  if (device.is_cpu()) return call_kernel_here(stack);
  Launch launch(*this);
  wait_for_other_streams(this);
  StreamRange range(*this);
  std::optional<IgnoredWarning> ignored;
  if (info.ignored_warning) ignored.emplace(info.ignored_warning);
  call_kernel_here(stack);
  range.end({.op = &info, .number = number});
  if (waits_for_device) synchronize(stream());
  // Kernels whose results the host sees have waited for the device themselves.
  if (waits_for_device || info.shows_values) launch.device_waited_for();
}

void Node::execute() {
  settings.apply();
  std::optional<c10::AutoGradMode> mode;
  if (c10::GradMode::is_enabled() != grad_mode) mode.emplace(grad_mode);
  const WarningsOf warnings(*this);
  if (in_flight) return end_copy(*in_flight);
  const OnStream here(*this);
  if (collective && collective->has_begun()) return install(collective->end());
  start();
}

namespace {

/// For kernels that look at that. (They run below autograd.)
void require_grad(torch::jit::Stack& stack) {
  for (c10::IValue& arg : stack)
    if (arg.isTensor() && arg.toTensor().defined() && arg.toTensor().layout() == c10::kStrided &&
        at::isFloatingType(arg.toTensor().scalar_type()))
      arg = arg.toTensor().detach().requires_grad_();
}

}  // namespace

void Node::start() {
  keep_overwritten_failures();
  check_plain_reads();
  if (run_own_kernels(*this)) return check_plain_reads();
  share_resizability();
  const UserFaces open(*this);
  torch::jit::Stack stack = real_arguments(*this);
  if (host_copy) return begin_copy(std::move(stack));
  if (info.looks_at_grad) require_grad(stack);
  {
    std::optional<WithModes> modes;
    if (keeps_modes) modes.emplace(kept_modes(this));
    std::optional<InCustomKernel> custom;
    if (!info.aten) custom.emplace(*this);
    try {
      call_kernel(stack);
    } catch (...) {
      follow_resizes();  // a kernel may throw once it has resized its result
      throw;
    }
    if (custom && !discovery) to_plain_results(stack);
  }
  if (!collective) return install(std::move(stack));
  collective->begin(std::move(stack));
  go_on(engine::QueueId::waits, collective->order().get());
}

void Node::install(torch::jit::Stack stack) {
  follow_resizes();
  check_plain_reads();  // once more: it may have been changed while the kernel read it
  if (discovery)
    discovery->results = std::move(stack);
  else
    install_results(*this, stack);
  if (!device.is_cpu() && !host_copy) note_launch(this);
}

engine::FailurePtr Node::run() noexcept {
  const SeenByTorchProfiler seen(*this);
  const int64_t begin = trace_time();
  engine::FailurePtr failure = run_once();
  const bool launched_now = in_flight && asks_again();  // (what follows is a wait)
  if (begin != 0 && (launched_now || !(in_flight || asks_again())))
    trace({.kind = TraceEvent::Kind::run,
           .op = &info,
           .number = number,
           .begin = begin,
           .failed = failure || (discovery && discovery->thrown)});
  return failure;
}

engine::FailurePtr Node::failure_of_forward() const noexcept {
  if (backward_of == 0 || FailureRoot::alive.load(std::memory_order_relaxed) == 0) return nullptr;
  std::shared_ptr<FailureRoot> root = failure_log().of_autograd_node(backward_of);
  if (!root) return nullptr;
  std::string failed = root->label;
  return std::make_shared<OpFailure>(std::move(root), std::move(failed));
}

engine::FailurePtr Node::run_once() noexcept {
  if (collective && !discovery)
    if (const engine::FailurePtr why = collective->kept_back()) return skip(why);
  if (const engine::FailurePtr failed = failure_of_forward()) return skip(failed);
  // Until the exception is gone: with it go the locals of the Python code, whose destructors are
  // the program's, and run within this op.
  std::optional<InCustomKernel> ends;
  try {
    std::optional<RealDispatch> below;
    if (discovery) below.emplace();
    const bool patient = lacked_memory_ || host_copy.direction == HostCopy::Direction::to_device;
    if (lacked_memory_) free_memory(device);
    patient ? execute_patiently() : execute();
    return nullptr;
  } catch (...) {
    note_interrupted_launch(this);
    if (is_python_error(std::current_exception())) ends.emplace(*this);
    if (is_out_of_memory(std::current_exception()) && retry_for_memory()) return nullptr;
    if (engine::FailurePtr lost = device_failure(*this, std::current_exception())) {
      if (discovery) discovery->poisoned = lost;
      return lost;
    }
    if (!discovery || discovery->caller != std::this_thread::get_id())
      return fail(std::current_exception());
    discovery->thrown = std::current_exception();
    return nullptr;
  }
}

engine::FailurePtr Node::skip(const engine::FailurePtr& cause) noexcept {
  if (discovery) discovery->poisoned = cause;
  if (collective) collective->not_begun(static_cast<const OpFailure&>(*cause));
  return std::make_shared<OpFailure>(std::static_pointer_cast<const OpFailure>(cause), label());
}

engine::FailurePtr Node::fail(std::exception_ptr error) const noexcept {
  auto root = std::make_shared<FailureRoot>();
  root->id = number;
  root->block = block;
  root->autograd_node = autograd_node;
  root->name = info.name;
  root->op = info.torch_name;
  root->label = label();
  root->inputs = describe_inputs();
  root->stack = stack;
  root->forward_stack = forward_stack;
  root->error = error;
  root->from_python = is_python_error(error);
  if (root->from_python) {  // anything else becomes a Python exception when it is read
    // It holds the frames of the Python kernel, and through them its locals: let go of them now.
    Gil gil;
    if (!root->original()) PyErr_Clear();
  }
  return std::make_shared<OpFailure>(std::move(root), label());
}

void Node::finish(const engine::FailurePtr& failure) noexcept {
  if (!failure || (discovery && discovery->poisoned)) return;
  const auto& root = static_cast<const OpFailure&>(*failure).root();
  using Holder = FailureLog::Holder;
  // (The tensor on the device was given to others when the copy was launched.)
  const bool given = in_flight && host_copy.direction == HostCopy::Direction::to_device;
  if (writes_plain) return failure_log().add_of_block(root, block, plain_vars_written(*this));
  if (std::vector<Ref<engine::Var>> shared = vars_used_as_plain(*this); !shared.empty())
    failure_log().add_shared(root, block, std::move(shared));
  failure_log().add(root, given || nobody_holds(*this) ? Holder::log : Holder::tensor);
}

}  // namespace lazyeng::run
