// csrc/fuse/tiles/tile_kernels_generic.cpp: the kernels for any processor, and the choice among the
// sets.
#include <ATen/Version.h>

#include "csrc/fuse/tiles/tile_kernels.inc"

namespace lazyeng::fuse {

const KernelSet& isa::generic() {
  static const KernelSet set{"generic",    find_kernel, find_checking, find_cast, find_fold,
                             find_columns, find_chains, find_rows,     find_sum};
  return set;
}

const KernelSet& best_kernels() {
  static const KernelSet* const best = [] {
    const std::string capability = at::get_cpu_capability();
    if (capability == "AVX512" && isa::avx512()) return isa::avx512();
    if ((capability == "AVX512" || capability == "AVX2") && isa::avx2()) return isa::avx2();
    return &isa::generic();
  }();
  return *best;
}

RowsKernel rows_kernel(RowFold fold, Type memory) {
  const bool narrower = fold == RowFold::cascade_sum || fold == RowFold::moments;
  const KernelSet& best = best_kernels();
  return (narrower && &best == isa::avx512() && isa::avx2() ? *isa::avx2() : best)
      .rows(fold, memory);
}

}  // namespace lazyeng::fuse

#pragma GCC pop_options
