// csrc/record/recorded_work.h: the Work that the caller of a recorded collective is given.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "csrc/record/call.h"

namespace lazyeng::record {

/// It is as that of a CUDA backend: who waits for it goes on at once, with tensors whose values
/// come later; its future has them from the start. Only memory that the caller sees, that of plain
/// tensors, is really waited for; and the end, by who says how long to wait for it.
class RecordedWork final : public c10d::Work {
 public:
  /// Before the call is recorded. `waits`: wait() is not part of the call itself.
  RecordedWork(const Call& call, bool waits);

  /// Asking also sends off what is recorded, so that a loop that asks comes to an end.
  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override { wait(); }
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  /// Waits: the caller needs the number.
  int sourceRank() const override;

 private:
  void check_has_results(const char* what) const;
  /// As a backend of the CPU does.
  void wait_at_most(std::chrono::milliseconds timeout);

  const run::OpInfo& info_;
  const Ref<run::Collective> collective_;
  const std::vector<at::Tensor> written_;
  std::vector<run::ValueRef> plain_;  // of written plain tensors
};

}  // namespace lazyeng::record
