// csrc/record/kept_values.h: what a call reads of memory that may be written unseen.
//
// Eager reads its arguments at the call. A recorded call reads them later; what is written
// meanwhile through operators is ordered behind it, or noticed (run/storage_var.h). What nobody can
// notice (run/plain/unseen_writers.h) must not matter: small arguments are copied when the call is
// recorded, calls with larger ones have run when they return. So do calls that write such memory,
// for whoever looks at it without asking us.
//
// Outside of lazy() blocks eager code may change any plain tensor, openly or through `.data`. Small
// ones are copied there too; of larger ones the version counters tell.
#pragma once

#include "csrc/run/node.h"

namespace lazyeng::record {

/// Before the node claims anything: puts copies in the place of arguments that can be copied.
void keep_values(run::Node& node);
/// Afterwards: whether it touches what may be written unseen all the same.
bool uses_memory_of_others(const run::Node& node);

}  // namespace lazyeng::record
