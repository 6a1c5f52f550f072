// csrc/run/slices.h: a product of matrices as several products, each of which writes a part of its
// result.
//
// Rows of the result are made from rows of the left factor, columns from columns of the right one,
// and each matrix of a batch by itself. So a call is taken apart along one dim of its result, and
// each part goes to the op's own `out=` kernel. Whether that gives the same bits (a library may
// choose its order of summation by the shape) is tried (width.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <optional>

#include "csrc/run/geometry.h"
#include "csrc/run/op_info.h"

namespace lazyeng::run {

class Slices {
 public:
  /// Of a call with these arguments, whose result looks like this. Null if it cannot be taken apart
  /// into so many parts of some size.
  static std::optional<Slices> of(const OpInfo& info, const torch::jit::Stack& args,
                                  const Geometry& result, int count);

  /// Makes a part of the result. Any thread, each part once.
  void run(int part) const;
  const at::Tensor& result() const { return result_; }

 private:
  Slices(const OpInfo& info, const torch::jit::Stack& args, int count)
      : info_(&info), args_(args), count_(count) {}

  bool choose_dim(c10::IntArrayRef sizes);
  int64_t begin(int part) const;
  at::Tensor slice_of(size_t arg, int64_t first, int64_t last) const;

  const OpInfo* info_;
  torch::jit::Stack args_;
  int count_;
  at::Tensor result_;
  size_t left_ = 0;    // the first factor among the arguments; the second comes next
  int64_t dim_ = 0;    // of the result, along which it is taken apart
  int64_t grain_ = 1;  // elements of that dim that stay together
};

}  // namespace lazyeng::run
