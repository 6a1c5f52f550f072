// csrc/record/node_builder.cpp: reads and writes of a node, from the schema's alias annotations.
#include "csrc/record/node_builder.h"

#include <c10/core/GradMode.h>

#include <algorithm>

#include "csrc/engine/reserve.h"
#include "csrc/record/generators.h"
#include "csrc/record/kept_values.h"
#include "csrc/record/special/collectives.h"
#include "csrc/record/thread_mode.h"
#include "csrc/run/caller/caller_modes.h"
#include "csrc/run/caller/read_habit.h"
#include "csrc/run/plain/plain_storage.h"

namespace lazyeng::record {
namespace {

void write(run::Node& node, const run::StorageVarRef& var, bool overwrites) {
  node.add_write(var, overwrites);
  node.written_vars.push_back(var.get());
}

/// A check fails what was computed together with the tensor that it checks.
void claim_checked(run::Node& node, const run::Value& value) {
  write(node, value.var_ref(), false);
  if (!value.var().siblings) return;
  for (const run::StorageVarRef& sibling : value.var().siblings->members())
    if (sibling.get() != &value.var()) write(node, sibling, false);
}

void claim_components(run::Node& node, const std::vector<ComponentArg>& components) {
  for (const ComponentArg& component : components) {
    component.written ? write(node, component.var, false) : node.add_read(component.var);
    node.components.push_back(component.var);
  }
}

void claim(run::Node& node, const run::StorageVarRef& generator) {
  for (const run::TensorArg& arg : node.tensors) {
    const run::ValueRef& value = arg.value;
    if (!value) continue;
    if (value->var().exposed())
      node.plain_reads.push_back({value->var_ref(), value->var().foreign_writes()});
    if (arg.written)
      write(node, value->var_ref(), arg.overwrites_memory());
    else if (node.info.checks_values)
      claim_checked(node, *value);
    else
      node.add_read(value->var_ref());
  }
  if (generator) write(node, generator, true);
  if (!node.collective) return;
  write(node, node.collective->order(), true);
  if (node.collective->done()) write(node, node.collective->done(), true);
}

/// Kernels that refuse inputs which overlap what they write compare storages: a plain tensor that
/// is written is passed itself, a lazy one is not.
bool shares_plain_written(const run::Node& node, const run::TensorArg& arg) {
  return std::any_of(node.tensors.begin(), node.tensors.end(), [&](const run::TensorArg& other) {
    return other.written && other.raw.defined() && other.value &&
           &other.value->var() == &arg.value->var();
  });
}

/// Bytes that the program may let go of before the op has read them (x += torch.rand(n)): once for
/// each var. What is written is waited for at the end of the block.
uint64_t bytes_left(const run::TensorArg& arg) {
  if (!arg.value || arg.written) return 0;
  run::StorageVar& var = arg.value->var();
  if (!var.may_be_left.load(std::memory_order_relaxed) ||
      var.counted.exchange(true, std::memory_order_relaxed))
    return 0;
  return var.nbytes();
}

/// copy_(self, src), and _to_copy(self, device=...), whose device may be that of self.
run::HostCopy host_copy_of(const Call& call) {
  if (!call.info.crosses_devices || !call.looks[0]) return {};
  const c10::Device first = call.looks[0]->device();
  if (call.info.writes)
    return call.looks[1] ? run::HostCopy::between(call.looks[1]->device(), first) : run::HostCopy{};
  for (const c10::IValue& arg : call.args)
    if (arg.isDevice()) return run::HostCopy::between(first, arg.toDevice());
  return {};
}

/// Where its kernels run: on the device of a tensor that is not the CPU's, or on the one named.
c10::Device device_of(const Call& call) {
  for (const run::GeometryRef& look : call.looks)
    if (look && look->device().is_cuda()) return look->device();
  for (const c10::IValue& arg : call.args)
    if (arg.isDevice() && arg.toDevice().is_cuda()) return arg.toDevice();
  return c10::kCPU;
}

}  // namespace

void count_own_writes(Call& call, c10::ArrayRef<run::TensorArg> args) {
  if (std::ranges::none_of(args, &run::TensorArg::silent))
    return call.own_writes.count(call.written);
  std::vector<at::Tensor> counted;
  size_t next = 0;
  for (const run::TensorArg& arg : args) {
    if (!arg.written) continue;
    if (!arg.silent) counted.push_back(call.written[next]);
    ++next;
  }
  call.own_writes.count(counted);
}

Ref<run::Node> build_node(Call& call, bool discover) {
  auto node = make_ref<run::Node>(call.info);
  node->block = thread_mode().block;
  node->writes_plain = call.writes_plain;
  node->settings = run::ThreadSettings::of_this_thread();
  node->grad_mode = c10::GradMode::is_enabled();
  if (!call.info.aten || call.info.calls_cast_ops) node->keeps_modes = run::keep_modes(node.get());
  // Before the arguments move into the node: a generator may be one of them.
  const run::StorageVarRef generator = call.info.random ? generator_var(call) : nullptr;
  node->host_copy = host_copy_of(call);
  node->device = device_of(call);
  node->stream_id = run::current_stream_id(node->device);
  node->waits_for_device = thread_mode().mode == Mode::sync;
  if (discover) {
    node->discovery = std::make_unique<run::Node::Discovery>();
    node->discovery->caller = std::this_thread::get_id();
    // What the run teaches is told by comparing with the call.
    node->args = call.args;
    node->tensors = call.tensors;
  } else {
    node->args = std::move(call.args);
    node->tensors = std::move(call.tensors);
  }
  // Reads go through the engine face; a plain tensor itself is passed only to an op whose effect on
  // its metadata is not known, with what else it gets of that tensor's memory.
  for (run::TensorArg& arg : node->tensors) {
    arg.plain = arg.value && arg.raw.defined();
    node->cost_bytes += bytes_left(arg);
    if (arg.value && !(discover && (arg.written || shares_plain_written(*node, arg))))
      arg.raw = at::Tensor();
  }
  node->queue = call.info.aten ? run::compute_queue(node->device) : engine::QueueId::python;
  if (node->host_copy) node->queue = node->host_copy.queue();
  if (call.info.collective != run::Collectivity::none) {
    node->queue = engine::QueueId::collectives;
    node->collective = call.collective
                           ? call.collective
                           : make_ref<run::Collective>(call.info, order_of_collectives());
  }
  if (!discover) keep_values(*node);
  claim(*node, generator);
  claim_components(*node, call.components);
  // (Writes of collectives move no version counter, in eager neither.)
  if (!node->collective) count_own_writes(call, node->tensors);
  return node;
}

namespace {

/// A failed check of one result (_assert_async, the "info" of LAPACK) is a failure of the others.
/// (Results in a list have nothing to do with each other.)
bool has_sibling_results(const run::OpInfo& info) {
  if (info.returns.size() < 2) return false;
  if (info.reports_info) return true;
  return !info.writes &&
         std::all_of(info.returns.begin(), info.returns.end(), [](const run::ReturnInfo& result) {
           return result.tensor && !result.list && !result.may_alias;
         });
}

}  // namespace

bool is_brief(const CallPlan& plan) {
  if (plan.small && (!plan.fans_out || plan.width->starts_no_helpers())) return true;
  return is_for_reader(plan) && run::read_habit.expects_read();
}

bool is_for_reader(const CallPlan& plan) {
  if (plan.small && !plan.fans_out) return true;
  return plan.width && plan.width->is_for_reader(run::ThreadSettings::of_this_thread().num_threads);
}

void join_siblings(const run::OpInfo& info, c10::ArrayRef<run::StorageVar*> vars) {
  if (!has_sibling_results(info)) return;
  const auto siblings = make_ref<run::SiblingGroup>();
  for (run::StorageVar* var : vars) {
    siblings->add(var);
    var->siblings = siblings;
  }
}

c10::SmallVector<run::ValueRef, 2> add_outputs(run::Node& node, const Call& call,
                                               const CallPlan& plan) {
  c10::SmallVector<run::ValueRef, 2> values;
  node.brief = node.queue == engine::QueueId::cpu && is_brief(plan);
  if (node.queue == engine::QueueId::cpu) node.width = plan.width;
  node.kind = plan.kind;
  node.plan = plan.id;
  for (const OutputPlan& output : plan.outputs) {
    run::ValueRef value;
    if (output.kind == OutputPlan::Kind::view) {
      value = make_ref<run::Value>(node.tensors[output.of].value->var_ref(),
                                   output.look(call.looks[output.of]->offset()));
      node.outputs.emplace_back();
    } else if (output.kind == OutputPlan::Kind::undefined) {
      node.outputs.emplace_back();
    } else {
      const uint64_t nbytes = output.geometry->extent_bytes();
      value = make_ref<run::Value>(make_ref<run::StorageVar>(nbytes), output.geometry);
      // (As write(), for a var that nobody else knows.)
      node.add_write(value->var_ref(), true);
      node.written_vars.push_back(&value->var());
      node.cost_bytes += nbytes;
      node.outputs.push_back(value);
    }
    values.push_back(std::move(value));
  }
  join_siblings(call.info, node.written_vars);
  return values;
}

void add_rewrites(run::Node& node, const CallPlan& plan) {
  for (const CallPlan::Rewrite& rewrite : plan.rewrites) {
    const run::ValueRef& before = node.tensors[rewrite.tensor].value;
    auto after = make_ref<run::Value>(before->var_ref(), rewrite.after);
    const uint64_t nbytes = rewrite.after->extent_bytes();
    if (nbytes > before->var().nbytes()) {
      node.cost_bytes += nbytes;
      before->var().set_nbytes(nbytes);
    }
    node.rewrites.push_back({rewrite.tensor, std::move(after)});
  }
}

void check_reserve() {
  TORCH_CHECK_WITH(OutOfMemoryError, engine::fill_reserve(),
                   "lazyeng: not enough memory to record the call");
}

std::vector<run::StorageVarRef> kept_for_checks(const run::Node& node) {
  if (!node.info.checks_values) return {};
  std::vector<run::StorageVarRef> kept;
  for (run::StorageVar* const var : node.written_vars) kept.emplace_back(var);
  return kept;
}

}  // namespace lazyeng::record
