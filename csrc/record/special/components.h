// csrc/record/special/components.h: tensors that cannot be recorded, made of tensors that can:
// sparse ones (indices and values), strided nested ones (a buffer) and quantized ones (a scale and
// a zero point for each channel, and the memory itself). Ops on them run at the call, and are
// ordered with recorded ops on what they are made of (`s._values().mul_(2)`, then `s.to_dense()`)
// by the vars of these components. Those hold storages of plain tensors: what an op has made of a
// lazy tensor's memory is given the user face (results.cpp), under which the table of plain
// storages finds its var. Nobody counts what ops on the whole write there, outside of blocks: the
// memory is lent to it (run/plain/unseen_writers.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "csrc/record/call.h"

namespace lazyeng::record {

using Components = c10::SmallVector<at::Tensor, 3>;

/// Of a nested or quantized tensor also itself, as it has a storage. None for tensors that can be
/// recorded.
Components components_of(const at::Tensor& tensor);

/// Adds the vars of the components of an argument to the call. (Also of those that no op was
/// recorded on: another thread may record one while the call runs.)
void read_components(Call& call, const at::Tensor& tensor, bool written);

/// The vars of a plain tensor, or of its components: those that ops were recorded on.
std::vector<run::StorageVarRef> vars_under(const at::Tensor& plain);
/// Whether accesses to the memory of a plain tensor, or of its components, raise now.
bool is_guarded(const at::Tensor& plain);

/// The var of a result that lies in the memory of a component of an argument; else null.
run::StorageVarRef var_of_component(const run::Node& node, const at::Tensor& result);

}  // namespace lazyeng::record
