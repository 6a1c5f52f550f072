// csrc/fuse/tiles/chains.h: steps of a program that run in one pass.
//
// A step whose result only the next step reads, both of few instructions and over the same
// elements, is a *link* of a chain with it: the value stays in the processor's registers from link
// to link (csrc/fuse/tiles/chain_kernels.inc). A chain may begin by widening a narrow type and end
// by narrowing to one. Only neighbours are linked, so what a chain reads and writes keeps its
// order.
#pragma once

#include "csrc/fuse/tiles/tile_program.h"

namespace lazyeng::fuse {

/// Puts chains in the place of steps, before registers have places.
void make_chains(Program& program, const KernelSet& kernels);

/// The operand that a chain's value is at first.
RegisterId first_value(const Step& chain);

}  // namespace lazyeng::fuse
