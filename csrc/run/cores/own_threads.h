// csrc/run/cores/own_threads.h: how many threads kernels use that the calling thread runs.
//
// at::set_num_threads would do, but it also stores the number that threads start with which are
// born later: that one is the program's.
#pragma once

namespace lazyeng::run {

/// Whether OpenMP can be told; without it a kernel has as many threads as torch likes.
bool has_own_threads();

/// Of OpenMP.
void set_own_threads(int threads);

/// Of MKL; 0: as many as it has for all threads. Returns what was set before.
int set_own_mkl_threads(int threads);

}  // namespace lazyeng::run
