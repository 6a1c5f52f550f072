// csrc/run/cores/own_threads.cpp: setters of the libraries that torch has loaded.
#include "csrc/run/cores/own_threads.h"

#include <dlfcn.h>

namespace lazyeng::run {
namespace {

/// What is missing, torch does not use.
struct Libraries {
  void (*omp_set)(int) = nullptr;
  int (*mkl_set_local)(int) = nullptr;
};

const Libraries& libraries() {
  static const Libraries found{
      reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads")),
      reinterpret_cast<int (*)(int)>(dlsym(RTLD_DEFAULT, "MKL_Set_Num_Threads_Local"))};
  return found;
}

}  // namespace

bool has_own_threads() { return libraries().omp_set != nullptr; }

void set_own_threads(int threads) {
  if (libraries().omp_set) libraries().omp_set(threads);
}

int set_own_mkl_threads(int threads) {
  return libraries().mkl_set_local ? libraries().mkl_set_local(threads) : 0;
}

}  // namespace lazyeng::run
