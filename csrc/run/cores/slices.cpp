// csrc/run/cores/slices.cpp: which kinds of ops are taken apart, and how.
#include "csrc/run/cores/slices.h"

namespace lazyeng::run {
namespace {

bool is_gradient(const OpInfo& info) { return info.short_name == "convolution_backward"; }

}  // namespace

int ways_to_slice(const OpInfo& info, int threads) {
  if (is_gradient(info)) return ways_to_slice_gradient(threads);
  return has_inner_slices(info) ? 2 : 1;
}

std::unique_ptr<Slices> slices_of(const OpInfo& info, const torch::jit::Stack& args, Looks results,
                                  int threads, int way) {
  switch (info.work) {
    case Work::product:
      return way == 0 ? product_slices(info, args, results, threads)
                      : inner_slices(info, args, threads);
    case Work::convolution:
      return is_gradient(info) ? gradient_slices(info, args, threads, way)
                               : image_slices(info, args, results, threads);
    case Work::windows:
      return image_slices(info, args, results, threads);
    default:
      return nullptr;
  }
}

}  // namespace lazyeng::run
