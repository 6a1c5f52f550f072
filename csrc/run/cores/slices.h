// csrc/run/cores/slices.h: one call as several calls, each of which makes a part of what it
// returns.
//
// Of a product rows of the result are made from rows of the left factor, columns from columns of
// the right one, and each matrix of a batch by itself (product_slices.cpp); or it is the sum of
// products over shares of the inner dim (inner_slices.cpp). Convolutions and pools
// make each image by itself (image_slices.cpp); the gradients of a convolution have nothing to do
// with each other, and those for weight and bias are sums over the images (gradient_slices.cpp).
// Whether that gives the same bits (a library may choose its order of summation by the shape) is
// tried (width.h). A call may be taken apart in several ways, of which the first that has the bits
// is taken.
#pragma once

#include <ATen/core/stack.h>

#include <memory>

#include "csrc/run/geometry.h"
#include "csrc/run/op_info.h"

namespace lazyeng::run {

/// What each result looks like; null: it is undefined.
using Looks = c10::ArrayRef<const Geometry*>;

class Slices {
 public:
  virtual ~Slices() = default;

  int count() const { return count_; }
  /// Makes a part of the results. Any thread, each part once.
  virtual void run(int part) = 0;
  /// Once all parts are made.
  virtual torch::jit::Stack results() const = 0;

 protected:
  Slices(const OpInfo& info, const torch::jit::Stack& args, int count)
      : info_(info), args_(args), count_(count) {}

  const OpInfo& info_;
  const torch::jit::Stack args_;
  const int count_;
};

/// How many ways there are.
int ways_to_slice(const OpInfo& info, int threads);
/// Of a call with these arguments, for so many threads, in one of the ways (from 0 on). Null if it
/// cannot be taken apart so into parts of some size.
std::unique_ptr<Slices> slices_of(const OpInfo& info, const torch::jit::Stack& args, Looks results,
                                  int threads, int way);

std::unique_ptr<Slices> product_slices(const OpInfo& info, const torch::jit::Stack& args,
                                       Looks results, int threads);
bool has_inner_slices(const OpInfo& info);
std::unique_ptr<Slices> inner_slices(const OpInfo& info, const torch::jit::Stack& args,
                                     int threads);
std::unique_ptr<Slices> image_slices(const OpInfo& info, const torch::jit::Stack& args,
                                     Looks results, int threads);
int ways_to_slice_gradient(int threads);
std::unique_ptr<Slices> gradient_slices(const OpInfo& info, const torch::jit::Stack& args,
                                        int threads, int way);

}  // namespace lazyeng::run
