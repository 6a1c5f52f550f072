// csrc/record/special/components.cpp: what sparse and nested tensors are made of.
#include "csrc/record/special/components.h"

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>

#include "csrc/run/plain/plain_storage.h"
#include "csrc/run/plain/unseen_writers.h"

namespace lazyeng::record {
namespace {

void add(Components& components, const at::Tensor& tensor) {
  if (tensor.defined() && tensor.has_storage()) components.push_back(tensor);
}

}  // namespace

Components components_of(const at::Tensor& tensor) {
  Components components;
  const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  if (impl->key_set().has(c10::DispatchKey::Python)) return components;
  if (impl->is_nested()) {
    add(components, tensor);
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
    if (run::StorageVarRef var = run::plain_storages().find(component))
      call.components.push_back({std::move(var), written});
}

run::StorageVarRef var_of_component(const run::Node& node, const at::Tensor& result) {
  for (const run::TensorArg& arg : node.tensors) {
    if (!arg.raw.defined() || arg.value) continue;
    for (const at::Tensor& component : components_of(arg.raw)) {
      if (!component.storage().is_alias_of(result.storage())) continue;
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
