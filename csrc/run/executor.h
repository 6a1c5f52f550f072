// csrc/run/executor.h: running one aten op on real tensors, and checking what it returned.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "csrc/run/node.h"

namespace lazyeng::run {

/// The arguments of a node as a dispatcher stack of real tensors. The caller holds the grants.
torch::jit::Stack real_arguments(Node& node);

/// Kernels of programs, written in Python, may return lazy tensors: what takes their place on the
/// stack, once the engine has computed them. `plain_of` is csrc/record's.
void set_plain_of(at::Tensor (*plain_of)(const at::Tensor&));
void to_plain_results(torch::jit::Stack& stack);

/// An op that has run.
struct Ran {
  const OpInfo& op;
  DoubtedKind kind;  ///< is doubted if a result does not lie as was expected; may be 0
  c10::ArrayRef<TensorArg> inputs;
};

/// Installs the returned tensors in the values of the outputs; repairs strides that differ from
/// what was recorded; throws c10::Error if shape or dtype differ.
void install_results(const Ran& ran, c10::ArrayRef<ValueRef> outputs,
                     const torch::jit::Stack& results);
/// The same for a node, whose arguments may have new metadata besides.
void install_results(Node& node, const torch::jit::Stack& results);

/// Excludes autograd, and lazyeng itself, from dispatch on this thread for a scope.
class RealDispatch {
 public:
  RealDispatch();
  ~RealDispatch();
  /// Whether this thread is in one.
  static bool active();
  RealDispatch(const RealDispatch&) = delete;
  RealDispatch& operator=(const RealDispatch&) = delete;

 private:
  const c10::impl::LocalDispatchKeySet before_;
};

/// Prepares an engine thread for running kernels: below autograd, once and for all.
void init_engine_thread();

}  // namespace lazyeng::run
