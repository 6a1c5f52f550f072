// csrc/fuse/trials.h: whether a step gives the bits of torch's kernel, found out by trying both.
//
// Of a product that is added to something, and of functions, that depends on how torch was
// compiled, and for which processor. So the first call of such an op compares them once, for
// contiguous tensors, pieces of them, tensors with gaps and expanded ones: some thousand numbers,
// and those with a meaning of their own. Two ways of rounding differ in more than one number of a
// thousand.
//
// (Of float16 and bfloat16 that is not so: a difference in the last bit of float32 is rounded away
// mostly. They are not tried.)
#pragma once

#include <c10/core/ScalarType.h>

#include "csrc/fuse/op_table.h"

namespace lazyeng::fuse {

/// Tries the op in the dtype, if that is to be done and was not done yet: half a millisecond. On
/// any thread, which must hold no lock.
void try_bits(const run::OpInfo& info, c10::ScalarType dtype);

/// What was found; false before. `dense`: all tensors lie in memory without gaps and in one order,
/// so that torch goes over them in whole vectors.
bool gives_torchs_bits(Opcode opcode, c10::ScalarType dtype, bool dense);

}  // namespace lazyeng::fuse
