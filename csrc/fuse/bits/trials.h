// csrc/fuse/bits/trials.h: whether a step gives the bits of torch's kernel, found out by trying
// both.
//
// Of a product that is added to something, and of functions, that depends on how torch was
// compiled, and for which processor. So they are compared once, in each loop that torch has for
// them: whole vectors, what is left over of them at the end of a row (and of each thread's share),
// memory with gaps, a tensor of one number a row. Each compares some thousand numbers, among them
// those with a meaning of their own.
//
// That is a sample. Where two ways round otherwise, they often do in only 3 of 100 numbers, which
// it does not miss; ways that differ in one of 10,000 it may take for the same.
//
// (Of float16 and bfloat16 it would miss most: a difference in the last bit of float32 is rounded
// away. So only their sums are tried, of numbers that cancel out.)
#pragma once

#include <c10/core/ScalarType.h>

#include <string>
#include <vector>

#include "csrc/fuse/op_table.h"

namespace lazyeng::fuse {

/// The program, after so many ops, begins to use the op in the dtype, with tensors of so many
/// elements. It is tried when such ops may have cost as much as the trial does (about a
/// millisecond, which is much of the first step of a small program): at once if they are large,
/// else when so many more ops are recorded, at most kOpsBefore. Tell it also while nothing is
/// fused, or whatever its bits: that may change.
void want_trial(const run::OpInfo& info, c10::ScalarType dtype, int64_t numel, uint64_t number);

/// Looks whether it is time, when so many ops have been recorded. Not while other bits are allowed:
/// then nobody asks.
bool trials_are_due(uint64_t number);

/// Of what is due, for about a millisecond: the rest stays due. On any thread, on one core; without
/// the GIL, as torch's kernels run meanwhile, and without locks.
void run_trials(uint64_t number);

/// One core goes over so many elements in the time of a trial.
inline constexpr uint64_t kElementsBefore = 1 << 21;
/// A trial is due once so many ops were recorded since it was wanted, at most.
inline constexpr uint64_t kOpsBefore = 1000;
/// For tests: another number of them. 0: a trial is due when it is wanted, and all are run.
void set_ops_before_trials(uint64_t ops);

/// What was found; false before. `dense`: all tensors lie in memory without gaps and in one order,
/// so that torch goes over them in whole vectors, and over what is left of these. `whole`: nothing
/// is left.
bool gives_torchs_bits(Opcode opcode, c10::ScalarType dtype, bool dense, bool whole);
/// A multiple of what torch's loops take at a time, of any dtype and instruction set.
inline constexpr int64_t kWholeVectors = 64;
/// The same of a reduction along rows, each of which lies in memory without gaps.
bool gives_torchs_bits(Form form, c10::ScalarType dtype);

/// For tests: an op of the table that is tried, and how that stands ("untried", "wanted",
/// "running", "same", "same if dense", "same if whole", "other").
struct TriedOp {
  std::string name;
  const char* in_float;
  const char* in_double;
  const char* in_half;
  const char* in_bfloat16;
};
std::vector<TriedOp> tried_ops();

}  // namespace lazyeng::fuse
