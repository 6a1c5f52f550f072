// csrc/fuse/tiles/tile_kernels_avx512.cpp: the kernels for processors with AVX512.
#include "csrc/fuse/tiles/tile_kernel.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)

#define LAZYENG_ISA_AVX512
#include "csrc/fuse/tiles/tile_kernels.inc"

namespace lazyeng::fuse {

const KernelSet* isa::avx512() {
  static const KernelSet set{"avx512",     find_kernel, find_checking, find_cast, find_fold,
                             find_columns, find_chains, find_rows,     find_sum};
  return &set;
}

}  // namespace lazyeng::fuse

#pragma GCC pop_options

#else

const lazyeng::fuse::KernelSet* lazyeng::fuse::isa::avx512() { return nullptr; }

#endif
