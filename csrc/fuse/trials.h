// csrc/fuse/trials.h: whether a step gives the bits of torch's kernel, found out by trying both.
//
// Of a product that is added to something, and of functions, that depends on how torch was
// compiled, and for which processor. So they are compared once, for contiguous tensors, pieces of
// them, tensors with gaps and expanded ones: some thousand numbers, and those with a meaning of
// their own. Two ways of rounding differ in more than one number of a thousand.
//
// (Of float16 and bfloat16 that is not so: a difference in the last bit of float32 is rounded away
// mostly. They are not tried.)
#pragma once

#include <c10/core/ScalarType.h>

#include "csrc/fuse/op_table.h"

namespace lazyeng::fuse {

/// The program begins to use the op in the dtype: it is tried when kOpsBefore more ops are recorded
/// (each trial takes half a millisecond or more, which is much of a first step).
void want_trial(const run::OpInfo& info, c10::ScalarType dtype);

/// Looks whether it is time, when the op of this number has been recorded.
bool trials_are_due(uint64_t number);

/// Of what is wanted. On any thread, which must hold no lock.
void run_trials();

/// For tests: how many ops to record before. 0: a trial is run when it is wanted.
inline constexpr uint64_t kOpsBefore = 1000;
void set_ops_before_trials(uint64_t ops);

/// What was found; false before. `dense`: all tensors lie in memory without gaps and in one order,
/// so that torch goes over them in whole vectors.
bool gives_torchs_bits(Opcode opcode, c10::ScalarType dtype, bool dense);

}  // namespace lazyeng::fuse
