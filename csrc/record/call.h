// csrc/record/call.h: one call as it reached our kernel, with its tensors looked up.
#pragma once

#include <ATen/core/stack.h>

#include <memory>
#include <unordered_map>

#include "csrc/run/node.h"
#include "csrc/run/plain/own_writes.h"
#include "csrc/run/traces/trace.h"

namespace lazyeng::record {

class LazyImpl;

/// The lazy tensors that a call writes, by their values; null: several of one value.
struct Writers {
  std::unordered_map<const run::Value*, const LazyImpl*> by_value;
  size_t seen = 0;  ///< so many of the written tensors
};

/// Memory that a sparse, nested or quantized argument is made of (special/components.h).
struct ComponentArg {
  run::StorageVarRef var;
  bool written;
};

struct Call {
  explicit Call(const run::OpInfo& info) : info(info) {}

  const run::OpInfo& info;
  torch::jit::Stack inputs;               ///< as they came; only if keeps_inputs(info)
  c10::SmallVector<c10::IValue, 6> args;  ///< as in Node::args
  /// As in Node::tensors, but a plain tensor that has a value stands in `raw` too.
  c10::SmallVector<run::TensorArg, 4> tensors;
  c10::SmallVector<run::GeometryRef, 4> looks;  ///< of each tensor; null: undefined or not strided
  c10::SmallVector<at::Tensor, 2> written;      ///< the written tensors, in order of arguments
  std::unique_ptr<Writers> writers;             ///< if there are many
  std::vector<ComponentArg> components;         ///< of all its arguments
  run::OwnWrites own_writes;                    ///< those of them that torch will bump for
  bool must_run = false;      ///< an argument cannot be recorded (sparse, quantized, symbolic)
  bool writes_plain = false;  ///< a written argument is a plain tensor
  bool to_lazyeng = false;    ///< the device that it names is "lazyeng"
  bool of_inference = false;  ///< the first argument is an inference tensor, so views of it are
  Ref<run::Collective> collective;  ///< of an op that returns a Work
  int64_t begin = run::trace_time();
};

/// A plain tensor whose memory the engine can read and write.
bool recordable(const at::Tensor& tensor);

/// (Storage::is_alias_of looks at the memory, which may be guarded.)
inline bool has_storage(const at::Tensor& tensor, const c10::Storage& storage) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() ==
         storage.unsafeGetStorageImpl();
}

/// The arguments themselves are returned, or passed on, by ops that write or look at metadata only.
inline bool keeps_inputs(const run::OpInfo& info) { return info.writes || info.metadata_only; }

/// What the call has written so far: of the same value, but another tensor object.
bool is_written_through_another(Call& call, const LazyImpl& lazy);

/// Tells the trace that the call is recorded; null: without a node.
void trace_record(const Call& call, const run::Node* node) noexcept;

/// Adds the next argument, a tensor.
void read_tensor(Call& call, const at::Tensor& tensor, const run::ArgInfo& info);

/// Takes the arguments off the stack.
Call read_call(const run::OpInfo& info, torch::jit::Stack* stack);

/// Of a product: alpha or beta are not 1.
bool is_scaled(const Call& call);

/// Two tensors of the call lie in one storage, and not apart from each other there.
bool share_memory(const Call& call, size_t i, size_t j);

/// What torch.device("lazyeng") stands for.
c10::Device backing_device();
void set_backing_device(c10::Device device);

}  // namespace lazyeng::record
