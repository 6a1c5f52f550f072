// csrc/record/at_once.h: calls that run at the call, without a node (Recorder::run_at_once).
#pragma once

#include <exception>

#include "csrc/record/metadata/infer.h"

namespace lazyeng::record {

/// What became of a call that was run at once.
struct AtOnce {
  c10::SmallVector<run::ValueRef, 2> values;  ///< of all its results, as add_outputs returns them
  std::exception_ptr thrown;                  ///< its kernel threw: to be recorded as a failure
  std::vector<c10::Warning> warned;           ///< its kernel warned
  uint64_t number = 0;                        ///< of the call in a trace; 0: nobody traces
  int64_t begin = 0;                          ///< when it began to run, if somebody traces
};

/// Gives the stack of the call to those who want it: the gradient, a trace, warnings. `result`: the
/// first one. GIL.
void note_at_once(const Call& call, const CallPlan& plan, AtOnce& done, const at::Tensor& result);

}  // namespace lazyeng::record
