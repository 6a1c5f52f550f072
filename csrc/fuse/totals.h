// csrc/fuse/totals.h: what elements are folded into.
#pragma once

#include "csrc/fuse/tile_program.h"

namespace lazyeng::fuse {

/// Adds what another total holds of elements of the type.
void add_total(Fold fold, Type type, const Total& part, Total& total);
/// Writes the total, divided, as one element of the type.
void write_total(char* memory, Type type, const Total& total, double divisor);

}  // namespace lazyeng::fuse
