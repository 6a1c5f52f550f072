// csrc/run/cores/slices.cpp: which kinds of ops are taken apart, and how.
#include "csrc/run/cores/slices.h"

namespace lazyeng::run {

std::unique_ptr<Slices> slices_of(const OpInfo& info, const torch::jit::Stack& args, Looks results,
                                  int threads) {
  switch (info.work) {
    case Work::product:
      return product_slices(info, args, results, threads);
    case Work::convolution:
      return info.short_name == "convolution_backward" ? gradient_slices(info, args)
                                                       : image_slices(info, args, results, threads);
    case Work::windows:
      return image_slices(info, args, results, threads);
    default:
      return nullptr;
  }
}

}  // namespace lazyeng::run
