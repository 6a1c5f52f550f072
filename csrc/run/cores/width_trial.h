// csrc/run/cores/width_trial.h: whether an op has the same bits on one core, and in slices, as on
// all.
//
// The kernel runs on made-up numbers, in one way and in the other. Only results of many elements
// prove anything (other orders of summation show in most of them), and never the program's own
// numbers (which may be zeros).
#pragma once

#include <ATen/core/stack.h>

#include "csrc/run/cores/slices.h"
#include "csrc/run/op_info.h"

namespace lazyeng::run {

/// Whether trials may take more time at present (trial_time.h).
bool trials_have_time();
/// For tests: they always may.
void set_trials_bounded(bool bounded);

struct OneCoreTrial {
  bool same = false;  ///< one core has the bits of all
  float gain = 0;     ///< its time by that of all, each at best
};
/// `args`: of a run. Their shapes, layouts and integers are taken.
OneCoreTrial try_one_core(const OpInfo& info, const torch::jit::Stack& args, int threads);
/// The first way to take the call apart (csrc/run/cores/slices.h) in which the slices, one by one,
/// on one core, have the bits that the whole has on `whole_has` cores; -1: none.
int way_to_slice(const OpInfo& info, const torch::jit::Stack& args, Looks results, int threads,
                 int whole_has);

}  // namespace lazyeng::run
