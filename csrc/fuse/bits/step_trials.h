// csrc/fuse/bits/step_trials.h: one step against torch's kernel (csrc/fuse/bits/trials.h says when,
// and why).
#pragma once

#include "csrc/fuse/op_table.h"

namespace lazyeng::fuse {

/// How that stands: what is at least as bad is greater, once it was tried.
enum class Verdict : uint8_t {
  untried,
  wanted,
  running,
  same,
  same_if_dense,
  same_if_whole,
  other
};

/// Whether it is known how torch computes what the opcode stands for.
bool has_oracle(Opcode opcode);
/// In float or double.
Verdict try_step(Opcode opcode, c10::ScalarType dtype);

}  // namespace lazyeng::fuse
