// csrc/run/collective.h: a collective of torch.distributed, from its begin to its end.
//
// A backend (gloo, NCCL) goes on with a collective on threads, or streams, of its own until who
// began it waits. Collectives of one process begin in program order, which has to be the same in
// all processes: begin() is called by the thread of one queue, under a grant of order(). They end
// in any order, on threads that have nothing else to do (QueueId::waits): a process that waited for
// one before it began the next could wait for a process that does the same.
#pragma once

#include <ATen/core/stack.h>

#include "csrc/run/failures/failure.h"
#include "csrc/run/op_info.h"
#include "csrc/run/storage_var.h"

namespace lazyeng::run {

class Collective final : public RefCounted {
 public:
  /// `order`: a var that all of them write.
  Collective(const OpInfo& info, StorageVarRef order);

  const StorageVarRef& order() const { return order_; }
  /// A var of its own that it writes; null unless it returns a Work.
  const StorageVarRef& done() const { return done_; }

  bool has_begun() const { return begun_; }
  /// Takes what the kernel returned.
  void begin(torch::jit::Stack results);
  /// Returns the results, without the Work, when the backend has written them; raises what it
  /// failed with.
  torch::jit::Stack end();
  /// Of a receive: from whom. Once done() is complete.
  int source_rank() const { return source_rank_; }

  /// Its input has failed: the other processes wait for it, and what this one would begin next
  /// would meet what they have begun. So no other begins until somebody has been told.
  void not_begun(const OpFailure& why);
  /// That failure, if this one may not begin.
  engine::FailurePtr kept_back() const;

 private:
  const OpInfo& info_;
  const StorageVarRef order_;
  const StorageVarRef done_;
  torch::jit::Stack results_;
  bool begun_ = false;
  int source_rank_ = -1;
};

}  // namespace lazyeng::run
