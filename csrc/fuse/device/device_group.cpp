// csrc/fuse/device/device_group.cpp: memory, arguments, launches.
#include "csrc/fuse/device/device_group.h"

#include <c10/core/DeviceGuard.h>

#include "csrc/fuse/device/device_arguments.h"
#include "csrc/fuse/device/kernel_requests.h"
#include "csrc/fuse/device/kernel_run.h"
#include "csrc/fuse/numbers.h"

namespace lazyeng::fuse {
namespace {

/// One run of a plan: where its tensors and numbers are.
class DeviceRun {
 public:
  DeviceRun(const Group& group, const GroupPlan& plan)
      : group_(group), plan_(plan), device_(group.members[0].node->device) {}

  /// The tensors that exist. False if one does not.
  bool find_tensors() {
    for (const TensorSource& source : plan_.tensors) {
      char* const address = source.fresh ? nullptr : address_of(value_of(source));
      if (!source.fresh && !address) return false;
      addresses_.push_back(address);
    }
    return true;
  }

  /// (Fresh memory always lies well.)
  Variant variant() const {
    Variant variant{device_.index(), 0};
    for (size_t t = 0; t < addresses_.size() && t < 64; ++t)
      if (is_aligned(addresses_[t])) variant.aligned |= uint64_t{1} << t;
    return variant;
  }

  void make_tensors() {
    for (size_t t = 0; t < addresses_.size(); ++t) {
      if (!plan_.tensors[t].fresh) continue;
      const run::Geometry& look = value_of(plan_.tensors[t]).geometry();
      made_.push_back(run::new_storage(look.extent_bytes(), device_));
      addresses_[t] = address_in(made_.back(), look);
    }
  }

  /// False if a number is one that no program may get, or an element is not there; throws for a
  /// number that does not fit.
  bool bind(const KernelArgument& argument, LaunchArguments& arguments) {
    if (argument.kind == KernelArgument::Kind::tensor) {
      arguments.add(addresses_[argument.index]);
      return true;
    }
    return argument.kind == KernelArgument::Kind::parameter &&
           bind_parameter(plan_.parameters[argument.index], argument.type, arguments);
  }

  void install() {
    size_t next = 0;
    for (const TensorSource& source : plan_.tensors)
      if (source.fresh) value_of(source).var().set_engine_face(std::move(made_[next++]));
  }

 private:
  const run::Value& value_of(const TensorSource& source) const {
    return *group_.values[source.value].value;
  }

  bool bind_parameter(const ParameterSource& source, Type type, LaunchArguments& arguments) {
    if (source.kind == ParameterSource::Kind::value) {
      char* const address = address_of(*group_.values[source.index].value);
      arguments.add(address);
      return address != nullptr;
    }
    const c10::Scalar number = number_of(group_, source);
    if (is_special(number, source)) return false;
    with_converted(number, source, [&](auto value) { add_number(value, type, arguments); });
    return true;
  }

  const Group& group_;
  const GroupPlan& plan_;
  const c10::Device device_;
  std::vector<char*> addresses_;
  std::vector<c10::Storage> made_;  // of each fresh tensor, in order
};

std::shared_ptr<const GroupKernels> kernels_for(const Group& group, const GroupPlanRef& plan,
                                                const Variant& variant) {
  bool unknown = false;
  std::shared_ptr<const GroupKernels> kernels = plan->kernels->find(variant, unknown);
  if (unknown) {
    KernelRequest request;
    request.device = variant.device;
    request.variant = variant;
    request.kernels = plan->kernels;
    request.plan = plan;
    for (const Member& member : group.members) request.ops.push_back(member.node->info.name);
    kernel_requests().ask(std::move(request));
  }
  return kernels;
}

}  // namespace

/// Nobody can ask for any of its results any more, so no step is left of it.
static bool makes_nothing(const Program& program) {
  return program.steps.empty() && program.scatters.empty() && program.reductions.empty() &&
         program.picked_sums.empty();
}

Launched launch_group(const Group& group, const GroupPlanRef& plan, std::exception_ptr& error) {
  if (makes_nothing(plan->program)) return Launched::yes;
  size_t launched = 0;
  try {
    DeviceRun run(group, *plan);
    if (!run.find_tensors()) return Launched::no;
    const auto kernels = kernels_for(group, plan, run.variant());
    if (!kernels) return Launched::no;
    const run::Node& first = *group.members[0].node;
    const c10::DeviceGuard here(first.device);
    const run::OnStream on_stream(first);
    run.make_tensors();
    KernelRun launches(first);
    launches.make_partials(*kernels);
    const auto own = [&run](const KernelArgument& argument, LaunchArguments& arguments) {
      return run.bind(argument, arguments);
    };
    if (!launches.bind(*kernels, own)) return Launched::no;
    c10::SmallVector<const run::Node*, 8> nodes;
    for (const Member& member : group.members) nodes.push_back(member.node.get());
    launches.launch(nodes, *kernels, [&run] { run.install(); }, launched);
    return Launched::yes;
  } catch (...) {
    // No memory, a number that does not fit, a lost device: the member itself will tell.
    if (launched == 0) return Launched::no;
    error = as_torch_tells(std::current_exception());
    return Launched::partly;
  }
}

}  // namespace lazyeng::fuse
