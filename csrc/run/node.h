// csrc/run/node.h: a recorded call: the engine op that runs one aten op on real tensors.
//
// Built by the recorder on the recording thread, and run by one engine thread. Once pushed it is
// changed by two only: the thread that runs it (what it has found and made; that it lacked memory),
// and a capture, which exchanges values and stream of nodes that are not running (fuse/graphs). A
// node holds values and plain scalars, never lazy tensors or tensors that Python knows.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <algorithm>
#include <memory>
#include <thread>

#include "csrc/engine/block_pool.h"
#include "csrc/engine/op.h"
#include "csrc/run/caller/thread_settings.h"
#include "csrc/run/collective.h"
#include "csrc/run/cores/width.h"
#include "csrc/run/device/host_copy.h"
#include "csrc/run/doubts.h"
#include "csrc/run/failures/failure.h"
#include "csrc/run/op_info.h"
#include "csrc/run/value.h"
#include "csrc/stacks/stack_table.h"

namespace lazyeng::run {

/// One tensor among the arguments: a recorded value, or a tensor passed through as it is (sparse,
/// quantized, a wrapped number). Neither: undefined or None.
struct TensorArg {
  ValueRef value;
  at::Tensor raw;
  bool written = false;
  bool silent = false;       ///< as ArgInfo::silent
  bool overwritten = false;  ///< as ArgInfo::overwritten
  bool plain = false;        ///< the call had a plain tensor here
  /// The call writes the value through another tensor object. (Kernels that refuse inputs which
  /// overlap what they write cannot tell of tensors with gaps, unless both are one object.)
  bool another_object = false;

  /// Every byte of the memory, without looking at it.
  bool overwrites_memory() const {
    return written && overwritten && value->geometry().covers(value->var().nbytes());
  }
  /// The value is there, and is no failure.
  bool is_ready() const { return !value || !(value->var().awaited() || value->var().failure()); }
  /// What a kernel gets. Only if it is there.
  at::Tensor real() const { return value ? value->real() : raw; }
};

class Node final : public engine::Op, public engine::Pooled<Node> {
 public:
  explicit Node(const OpInfo& info) : info(info) {}

  engine::FailurePtr run() noexcept override;
  engine::FailurePtr skip(const engine::FailurePtr& cause) noexcept override;
  void finish(const engine::FailurePtr& failure) noexcept override;

  /// All that it reads is there, and none of it is a failure.
  bool inputs_are_ready() const {
    return std::ranges::all_of(tensors, &TensorArg::is_ready) &&
           std::ranges::none_of(components, [](const StorageVarRef& var) {
             return var->awaited() || var->failure();
           });
  }

  /// "mm#7"
  std::string label() const;
  /// "float32[2,3]@cpu" of each tensor among the arguments.
  std::vector<std::string> describe_inputs() const;

  /// Throws if a plain tensor that it reads was changed since it was recorded.
  void check_plain_reads() const;
  /// In a backward pass: that of the op whose gradient this is part of. A program in eager would
  /// not have come here, and its kernel may rely on what that one has checked.
  engine::FailurePtr failure_of_forward() const noexcept;
  /// The failure of this op, thrown by it.
  engine::FailurePtr fail(std::exception_ptr error) const noexcept;

  const OpInfo& info;
  uint64_t number = 0;  ///< position in the order of recording
  uint64_t block = 0;   ///< the lazy() block that recorded it; 0 outside
  /// Of what it returns, known when it was recorded: two nodes of one plan have the same op, looks
  /// of tensors (but for offsets) and other arguments (but for numbers). 0: it has none.
  uint64_t plan = 0;
  /// Number of the newest foreign kernel that it waits for (fuse/foreign_kernels.h); 0: for none.
  uint64_t behind = 0;
  stacks::StackRef stack;
  /// Of the forward op whose gradient this op is part of; null outside of backward passes.
  stacks::StackRef forward_stack;
  /// Which node autograd has made for the op; 0: none. And of which one it is a part.
  uint64_t autograd_node = 0, backward_of = 0;

  /// As the schema lists them. A tensor argument is None here and stands in `tensors`; a list of
  /// tensors is its length here, and its elements stand in `tensors`.
  c10::SmallVector<c10::IValue, 6> args;
  c10::SmallVector<TensorArg, 4> tensors;
  /// Tensors that the op returns, other than written arguments, in order; null: not a new tensor.
  c10::SmallVector<ValueRef, 2> outputs;

  /// An argument whose metadata the op changes, and its value afterwards.
  struct Rewrite {
    uint32_t tensor;
    ValueRef after;
  };
  c10::SmallVector<Rewrite, 1> rewrites;

  /// Reads of storages shared with plain tensors, and what they must find unchanged.
  struct PlainRead {
    StorageVarRef var;
    int64_t foreign_writes;
  };
  c10::SmallVector<PlainRead, 1> plain_reads;
  /// Vars that it writes, which its accesses keep alive.
  c10::SmallVector<StorageVar*, 2> written_vars;
  /// Of the recording thread.
  ThreadSettings settings;
  bool grad_mode = true;     ///< likewise; kernels run below autograd, but some ask for it
  bool keeps_modes = false;  ///< of its caller: caller_modes.h
  /// Null: it has the width of its settings.
  Ref<Width> width;
  /// Is doubted if the results do not lie as the plan said. 0: not of a plan.
  DoubtedKind kind = 0;
  /// On which it launches kernels; the CPU: none.
  c10::Device device{c10::kCPU};
  /// It ends when the device has done it, not when it is launched (mode sync).
  bool waits_for_device = false;
  /// What it is of that kind; it then runs on a queue of such copies.
  HostCopy host_copy;
  /// Of ops of torch.distributed, which begin on one queue, in order, and end on another.
  Ref<Collective> collective;
  /// A written argument is a plain tensor, which cannot carry a failure.
  bool writes_plain = false;

  /// For ops whose results are not known before they ran; run on the recording thread, which raises
  /// what went wrong at the call: the versions written do not fail. If Ctrl-C takes that thread out
  /// of its wait, an engine thread runs the op, and its failure is kept as any other.
  struct Discovery {
    std::thread::id caller;     ///< the recording thread
    torch::jit::Stack results;  ///< what the op returned
    std::vector<std::pair<uint32_t, at::Tensor>>
        written;                  ///< written arguments as they are after it
    std::exception_ptr thrown;    ///< by the op, on that thread
    engine::FailurePtr poisoned;  ///< it was skipped: an argument had failed
  };
  std::unique_ptr<Discovery> discovery;
  /// Of sparse and nested arguments, claimed.
  std::vector<StorageVarRef> components;

  // Of an op of a device:
  /// What the program had selected there. A copy's own stream is another (host_copy.h).
  c10::StreamId stream_id = 0;
  /// Its kernels go into a graph (csrc/fuse/graphs/memory_graph.h), on that stream: nothing waits
  /// for them, and nobody is told.
  bool captured = false;
  c10::Stream stream() const { return c10::Stream(c10::Stream::UNSAFE, device, stream_id); }
  /// Of a copy between host and device that is launched; the device may not have done it.
  std::shared_ptr<const CopyInFlight> in_flight;

 private:
  void execute();
  void execute_patiently();
  void start();
  void install(torch::jit::Stack stack);
  void begin_copy(torch::jit::Stack stack);
  void end_copy(const CopyInFlight& copy) const;
  const Value* on_device() const;
  void call_kernel(torch::jit::Stack& stack) const;
  void call_kernel_here(torch::jit::Stack& stack) const;
  void share_resizability() const;
  void follow_resizes() const;
  void keep_overwritten_failures() const;
  uint64_t largest_bytes() const;
  engine::FailurePtr run_once() noexcept;
  bool retry_for_memory() noexcept;

  bool lacked_memory_ = false;
};

/// "float32[2,3]@cpu"
std::string describe(const Geometry& geometry);
/// Of each tensor of a call.
std::vector<std::string> describe(std::span<const TensorArg> tensors);

}  // namespace lazyeng::run
