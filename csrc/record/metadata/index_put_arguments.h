// csrc/record/metadata/index_put_arguments.h: what kernels refuse of writes by index (`x[i] = v`,
// `x[mask] = v`), and their meta functions take.
#pragma once

#include "csrc/record/call.h"

namespace lazyeng::record {

/// True for a call of aten::index_put, or another form of it, whose arguments the kernel may refuse
/// for their sizes or dtypes: it runs at the call then. (How many elements a mask chooses is a
/// value: whether there are as many values shows when it runs.)
bool index_put_may_be_refused(const Call& call);

}  // namespace lazyeng::record
