// csrc/record/special/components.cpp: what sparse, nested and quantized tensors are made of.
#include "csrc/record/special/components.h"

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/quantized/QTensorImpl.h>
#include <ATen/quantized/Quantizer.h>

#include <algorithm>

#include "csrc/run/plain/plain_storage.h"
#include "csrc/run/plain/unseen_writers.h"

namespace lazyeng::record {
namespace {

void add(Components& components, const at::Tensor& tensor) {
  if (tensor.defined() && tensor.has_storage()) components.push_back(tensor);
}

/// Of one for all elements they are numbers.
void add_parameters(Components& components, at::Quantizer& quantizer) {
  const at::QScheme scheme = quantizer.qscheme();
  if (scheme != at::kPerChannelAffine && scheme != at::kPerChannelAffineFloatQParams) return;
  const auto& of_channels = static_cast<at::PerChannelAffineQuantizer&>(quantizer);
  add(components, of_channels.scales());
  add(components, of_channels.zero_points());
}

}  // namespace

Components components_of(const at::Tensor& tensor) {
  Components components;
  const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  if (impl->key_set().has(c10::DispatchKey::Python)) return components;
  if (impl->is_nested()) {
    add(components, tensor);
  } else if (tensor.is_quantized()) {
    add(components, tensor);
    add_parameters(components, *at::get_qtensorimpl(tensor)->quantizer());
  } else if (impl->is_sparse()) {
    const auto* const sparse = static_cast<const at::SparseTensorImpl*>(impl);
    add(components, sparse->indices());
    add(components, sparse->values());
  } else if (impl->is_sparse_compressed()) {
    const auto* const sparse = static_cast<const at::SparseCsrTensorImpl*>(impl);
    add(components, sparse->compressed_indices());
    add(components, sparse->plain_indices());
    add(components, sparse->values());
  }
  return components;
}

void read_components(Call& call, const at::Tensor& tensor, bool written) {
  for (const at::Tensor& component : components_of(tensor))
    call.components.push_back({run::plain_storages().var_of(component), written});
}

std::vector<run::StorageVarRef> vars_under(const at::Tensor& plain) {
  std::vector<run::StorageVarRef> vars;
  const auto add_known = [&](const at::Tensor& tensor) {
    if (run::StorageVarRef var = run::plain_storages().find(tensor)) vars.push_back(std::move(var));
  };
  if (recordable(plain))
    add_known(plain);
  else
    std::ranges::for_each(components_of(plain), add_known);
  return vars;
}

bool is_guarded(const at::Tensor& plain) {
  const auto guarded = [](const at::Tensor& tensor) {
    return run::plain_storages().is_guarded(tensor);
  };
  return recordable(plain) ? guarded(plain) : std::ranges::any_of(components_of(plain), guarded);
}

run::StorageVarRef var_of_component(const run::Node& node, const at::Tensor& result) {
  for (const run::TensorArg& arg : node.tensors) {
    if (!arg.raw.defined() || arg.value) continue;
    for (const at::Tensor& component : components_of(arg.raw)) {
      if (!has_storage(result, component.storage())) continue;
      run::StorageVarRef var = run::plain_storages().var_of(result);
      // (What is written there the program wants to find in the argument.)
      var->used_as_plain.store(true, std::memory_order_relaxed);
      run::lendings().lend(component.storage(), component);
      return var;
    }
  }
  return nullptr;
}

}  // namespace lazyeng::record
