// csrc/run/caller/caller_modes.h: autocast and grad mode, as kernels made of other ops see them.
//
// Of torch's own kernels a few ask for grad mode, which each node has (node.h), and some call ops
// that autocast has rules for (`OpInfo::calls_cast_ops`); for all others casts and autograd come
// before an op is recorded. A kernel that somebody wrote in terms of other ops finds in eager what
// its caller has set.
#pragma once

#include <c10/core/DispatchKeySet.h>
#include <c10/core/ScalarType.h>

#include <array>

namespace lazyeng::run {

class Node;

struct CallerModes {
  c10::DispatchKeySet autocast;                  ///< keys that are on
  std::array<c10::ScalarType, 2> casts_to = {};  ///< on the CPU, and on CUDA
  bool grad = true;

  static CallerModes of_this_thread();
  bool casts(size_t device) const;  ///< of those that `casts_to` has
};

/// Keeps those of the calling thread for the run of a node. Aside: few nodes have any to keep, and
/// others do not pay for it. False: there is nothing to keep, as an engine thread has the same.
bool keep_modes(const Node* node);
/// What was kept for it.
CallerModes kept_modes(const Node* node);

/// Sets them on the calling thread for a scope. (Not all of what the calling thread has: what else
/// is excluded from dispatch stays so.)
class WithModes {
 public:
  explicit WithModes(const CallerModes& modes);
  ~WithModes();
  WithModes(const WithModes&) = delete;
  WithModes& operator=(const WithModes&) = delete;

 private:
  const CallerModes before_;
  const bool caches_;
};

/// What kernels of custom ops run in.
class InCustomKernel {
 public:
  explicit InCustomKernel(const Node& node);
  ~InCustomKernel();
  /// Whether the calling thread is within one. It must not wait for all that is recorded: the op is
  /// a part of that.
  static bool active() { return node() != nullptr; }
  /// Of the innermost one that the calling thread is within; null outside.
  static const Node* node();
  /// Raises KeyboardInterrupt in the Python code of all threads that are within one. (They notice
  /// it between two instructions; not while they sleep or wait.) GIL.
  static void interrupt_all();
  InCustomKernel(const InCustomKernel&) = delete;
  InCustomKernel& operator=(const InCustomKernel&) = delete;

 private:
  const Node* const outer_;
};

}  // namespace lazyeng::run
