// csrc/run/cores/recurrent_trial.cpp: the gradient's arguments are made by a call of the layer.
#include "csrc/run/cores/recurrent_trial.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>

#include <array>
#include <string>
#include <utility>

namespace lazyeng::run {
namespace {

using Names = std::pair<const char*, const char*>;

/// Arguments of aten::mkldnn_rnn_layer that its gradient has by another name.
constexpr std::array<Names, 5> kOtherNames = {{{"weight0", "weight1"},
                                               {"weight1", "weight2"},
                                               {"weight2", "weight3"},
                                               {"weight3", "weight4"},
                                               {"cx_", "cx_tmp"}}};
/// What the layer returns, as arguments of its gradient.
constexpr std::array<const char*, 4> kResults = {"output", "hy_", "cy_", "workspace"};

const c10::OperatorHandle& layer() {
  static const c10::OperatorHandle found =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::mkldnn_rnn_layer", "");
  return found;
}

c10::IValue& argument(const OpInfo& gradient, torch::jit::Stack& args, const std::string& name) {
  const std::optional<int> place = gradient.handle.schema().argumentIndexWithName(name);
  TORCH_CHECK(place, gradient.name, " has no argument ", name);
  return args[static_cast<size_t>(*place)];
}

std::string name_in_gradient(const std::string& name) {
  for (const auto& [in_layer, in_gradient] : kOtherNames)
    if (name == in_layer) return in_gradient;
  return name;
}

void make_smaller(const at::Tensor& numbers) { numbers.sub_(1.5).mul_(0.5); }

}  // namespace

void fit_to_recurrent_layer(const OpInfo& info, torch::jit::Stack& args) {
  for (const c10::IValue& arg : args)
    if (arg.isTensor() && arg.toTensor().defined() && arg.toTensor().is_floating_point())
      make_smaller(arg.toTensor());
  if (info.base == layer().operator_name().name) return;
  torch::jit::Stack stack;
  for (const c10::Argument& of_layer : layer().schema().arguments())
    stack.push_back(argument(info, args, name_in_gradient(of_layer.name())));
  const c10::AutoGradMode keeps_workspace(true);
  layer().callBoxed(stack);
  for (size_t i = 0; i < kResults.size(); ++i) argument(info, args, kResults[i]) = stack[i];
}

bool is_workspace(const OpInfo& info, const at::Tensor& result) {
  return info.work == Work::recurrent && result.scalar_type() == at::kByte;
}

}  // namespace lazyeng::run
