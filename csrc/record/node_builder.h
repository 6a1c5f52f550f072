// csrc/record/node_builder.h: from a call to a node that claims its vars.
#pragma once

#include "csrc/record/metadata/infer.h"

namespace lazyeng::record {

/// A node for the call, without outputs, which has claimed what the call reads and writes. Unless
/// it is to discover, it takes the arguments over: the call has none afterwards.
Ref<run::Node> build_node(Call& call, bool discover);

/// Counts those of its writes that torch counts as changes, before it does. `args`: its tensors.
void count_own_writes(Call& call, c10::ArrayRef<run::TensorArg> args);

/// Throws c10::OutOfMemoryError if what is recorded now could not be seen through
/// (csrc/engine/reserve.h).
void check_reserve();

/// Adds a value for each fresh output of the plan and claims it. Returns the values of all outputs,
/// views included; null for undefined ones.
c10::SmallVector<run::ValueRef, 2> add_outputs(run::Node& node, const Call& call,
                                               const CallPlan& plan);

/// Whether a thread of the program that waits may run it: it is small, and starts no helpers; or it
/// is for a reader, and the thread is one.
bool is_brief(const CallPlan& plan);
/// Whether a program that reads soon runs it itself (csrc/run/cores/width.h).
bool is_for_reader(const CallPlan& plan);
/// The vars of results of one call: if a check of one fails the others fail too, where that can be.
void join_siblings(const run::OpInfo& info, c10::ArrayRef<run::StorageVar*> vars);

/// To be held until the node has run. What it writes is kept by the values that it holds; but that
/// a check fails together with what it checks is kept by its claims alone, which end when it has
/// run.
std::vector<run::StorageVarRef> kept_for_checks(const run::Node& node);

/// Values for metadata changes of written arguments.
void add_rewrites(run::Node& node, const CallPlan& plan);

}  // namespace lazyeng::record
