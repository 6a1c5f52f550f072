// csrc/run/plain/own_writes.h: recorded writes, told from interference by being counted before
// torch bumps their version counters (storage_var.h).
//
// Ops of aten bump after our kernel has returned, not if it raises. Those made by
// torch.library.custom_op bump first, and may be recorded much later: without an announcement, a
// pending read that runs meanwhile would take the bump for interference.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace lazyeng::run {

struct TrackedVersion;

/// What a call writes. It ends when our kernel returns to torch, which bumps then, or is left by an
/// exception: what was counted is taken back.
class OwnWrites {
 public:
  OwnWrites() = default;
  OwnWrites(OwnWrites&&) = default;
  OwnWrites& operator=(OwnWrites&&) = delete;
  ~OwnWrites();

  /// To be called before the bump with the tensors that a recorded op writes. What is tracked stays
  /// so until the thread's next such call: the op may be done, and its vars gone, before the bump,
  /// which a var that another thread makes meanwhile would take for a foreign write.
  void count(c10::ArrayRef<at::Tensor> written);
  /// The same for a write of memory that has no var, and may get one before the bump.
  void count_without_var(const at::Tensor& written);
  /// Nothing is bumped for what was counted so far.
  void take_back() noexcept;

 private:
  void add(std::shared_ptr<TrackedVersion> tracked);

  std::vector<std::shared_ptr<TrackedVersion>> counted_;
  int exceptions_ = 0;  // in flight when the first was counted
};

/// Counts a write of the tensor, which the calling thread is about to bump and then to record;
/// OwnWrites does not count it again.
void announce_own_write(const at::Tensor& tensor);

/// Of a tensor whose counter torch is about to bump once more for writes that were or will be
/// recorded, as an autograd.Function's input that it marked as dirty. To be kept until then: so a
/// var that comes to the counter in between knows of it.
std::shared_ptr<TrackedVersion> expect_bump(const at::Tensor& tensor);

}  // namespace lazyeng::run
