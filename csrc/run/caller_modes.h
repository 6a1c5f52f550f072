// csrc/run/caller_modes.h: autocast and grad mode, as kernels of custom ops see them.
//
// Of torch's own kernels a few ask for grad mode, which each node has (node.h); casts and autograd
// come before an op is recorded. A kernel that somebody wrote in terms of other ops finds in eager
// what its caller has set.
#pragma once

#include <c10/core/DispatchKeySet.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <optional>

namespace lazyeng::run {

class Node;

struct CallerModes {
  c10::DispatchKeySet autocast;                  ///< keys that are on
  std::array<c10::ScalarType, 2> casts_to = {};  ///< on the CPU, and on CUDA
  bool grad = true;

  static CallerModes of_this_thread();
};

/// Keeps those of the calling thread for the run of a custom op. Aside: few nodes have any to keep,
/// and those of other ops do not pay for it.
void keep_modes(const Node* node);
/// Null: an engine thread has the same.
std::optional<CallerModes> kept_modes(const Node* node);

/// What kernels of custom ops run in: with the modes of the op's caller, if there are any kept.
class InCustomKernel {
 public:
  explicit InCustomKernel(const std::optional<CallerModes>& modes);
  ~InCustomKernel();
  /// Whether the calling thread is within one. It must not wait for all that is recorded: the op is
  /// a part of that.
  static bool active();
  InCustomKernel(const InCustomKernel&) = delete;
  InCustomKernel& operator=(const InCustomKernel&) = delete;

 private:
  std::optional<CallerModes> before_;
  bool caches_ = false;
};

}  // namespace lazyeng::run
