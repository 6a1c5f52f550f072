// csrc/fuse/tiles/upper_halves.h: what AVX code leaves in the wide registers.
//
// While their upper halves hold anything, SSE code is several times as slow, as each of its
// instructions has to keep them. MKL's vector functions are SSE code on processors that it does not
// know. Compilers clear the upper halves at the end of functions, but not of those that take
// vectors as arguments, as the links of chains do.
#pragma once

namespace lazyeng::fuse {

inline void clear_upper_halves() {
#if defined(__x86_64__)
  static const bool has_avx = __builtin_cpu_supports("avx");
  if (has_avx)
    asm volatile("vzeroupper" ::
                     : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",
                       "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
#endif
}

}  // namespace lazyeng::fuse
