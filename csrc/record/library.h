// csrc/record/library.h: making torch's dispatcher call the recorder.
#pragma once

#include <array>

#include "csrc/record/recorder.h"

namespace lazyeng::record {

/// Registers the boxed kernel for every op that has no composite decomposition, fallbacks for the
/// rest, and a listener for ops registered later. Once per process.
/// Returns how many ops got a kernel of their own.
size_t register_kernels();

struct OtherLayout {
  c10::DispatchKey ours;
  c10::DispatchKey cpu;
};

/// What tensors of other layouts get inside lazy(), where their dispatch key is that of ours.
inline constexpr std::array<OtherLayout, 4> kOtherLayouts = {
    {{c10::DispatchKey::SparsePrivateUse1, c10::DispatchKey::SparseCPU},
     {c10::DispatchKey::SparseCsrPrivateUse1, c10::DispatchKey::SparseCsrCPU},
     {c10::DispatchKey::QuantizedPrivateUse1, c10::DispatchKey::QuantizedCPU},
     {c10::DispatchKey::NestedTensorPrivateUse1, c10::DispatchKey::NestedTensorCPU}}};

/// What the op's schema says; the one object for the op, until it is defined anew.
const run::OpInfo& info_of(const c10::OperatorHandle& op);

/// A boxed kernel: records the op as one.
void record_whole(const c10::OperatorHandle& op, torch::jit::Stack* stack);

/// "all_reduce", "add.out": as torch::Library wants it.
std::string without_namespace(const c10::OperatorName& name);

/// The program has put a kernel in place of torch's for an op of aten, or has taken it back: from
/// now on the op is recorded as a custom op is, or again as torch's. What is recorded has run. GIL.
void set_replaced(const c10::OperatorHandle& op, bool replaced);
bool is_replaced(const c10::OperatorHandle& op);

/// Gives ops that were registered since the last call a kernel of their own, so that they are
/// recorded as one op even if they have a kernel for all backends. Cheap when there are none.
void adopt_new_ops();

/// The same, also for ops that had no kernels so far.
void adopt_ops_with_kernels();

/// Before the definitions of an op ("mylib::foo", all overloads) end: without ours its entry in the
/// dispatcher goes with them. What is recorded has run. (What stays defined is adopted again.)
void take_back_kernels(const std::string& name);

}  // namespace lazyeng::record
