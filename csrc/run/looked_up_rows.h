// csrc/run/looked_up_rows.h: the gradient of a lookup goes to rows by numbers that only the forward
// op has looked at.
#pragma once

#include <ATen/core/stack.h>

#include "csrc/run/op_info.h"

namespace lazyeng::run {

/// For an op whose kernel writes rows that its indices name, without a look (OpInfo::trusts_rows):
/// throws c10::IndexError, as the forward op does, if there is no such row. In eager a program does
/// not come so far; here the forward op may not have run yet. `stack`: its arguments.
void check_rows(const OpInfo& info, const torch::jit::Stack& stack);

}  // namespace lazyeng::run
