// csrc/record/results.h: from values and real tensors to what the caller of an op gets back.
#pragma once

#include "csrc/record/metadata/infer.h"

namespace lazyeng::record {

/// Lazy tensors made for one call.
using Made = c10::SmallVector<at::Tensor, 2>;

/// Pushes the results of a recorded call in schema order. Takes `values`, as add_outputs returned
/// them; the lazy tensors made for them are appended to `made`, without Python objects.
void push_recorded(const Call& call, const CallPlan& plan,
                   c10::SmallVectorImpl<run::ValueRef>& values, Made& made,
                   torch::jit::Stack* results);

/// They get them in the order of the schema. GIL.
void make_python_objects(const Made& made);
/// Or the first tensor that the call has written; undefined if there is none.
at::Tensor first_result(const Made& made, const Call& call);

/// Written lazy arguments as they are after an op that has run: new metadata, or (set_) another
/// storage. Also after one that has failed: it may have resized its out= before.
void update_written(const Call& call, const run::Node& node);

/// Pushes the results of a call that has run, as lazy tensors where they can be; updates the
/// metadata of written arguments.
void push_found(const Call& call, run::Node& node, Made& made, torch::jit::Stack* results);

/// Gives the written lazy tensors among `tensors`, the call's arguments, their new values.
void apply_rewrites(const Call& call, c10::ArrayRef<run::TensorArg> tensors, const CallPlan& plan,
                    c10::ArrayRef<run::ValueRef> after);

}  // namespace lazyeng::record
