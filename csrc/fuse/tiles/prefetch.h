// csrc/fuse/tiles/prefetch.h: the memory of the next tile comes into the cache while this one is
// computed.
//
// What the first step of a tile reads and its last ones write would come from memory while nothing
// is computed: the hardware's own prefetching ends with each tile. A chain of 20 ops over 64 MiB
// takes 0.75 of the time with it. A program of one step has no such tiles: it goes through memory.
#pragma once

#include <algorithm>

#include "csrc/engine/prefetch.h"
#include "csrc/fuse/tiles/tile_program.h"

namespace lazyeng::fuse {

class Prefetch {
 public:
  /// Of the n elements from `first` on.
  Prefetch(const Program& program, const Bindings& bindings, int64_t first, int64_t n)
      : program_(program), bindings_(bindings), first_(first), n_(n) {
    const auto steps = static_cast<int64_t>(program.steps.size());
    if (steps > 1) part_ = (n + steps - 1) / steps;
  }

  /// To be called after each step: the next part, so that few lines are under way at a time.
  void advance() {
    const int64_t from = done_;
    done_ = std::min(done_ + part_, n_);
    if (from == done_) return;
    for (size_t t = 0; t < program_.tensors.size(); ++t) {
      const TensorAccess& tensor = program_.tensors[t];
      if (!tensor.linear() || tensor.rate != Rate::element) continue;
      const auto item = static_cast<int64_t>(size_of(tensor.type));
      const char* const begin = bindings_.tensors[t] + first_ * item;
      engine::prefetch(begin + from * item, static_cast<size_t>((done_ - from) * item));
    }
  }

 private:
  const Program& program_;
  const Bindings& bindings_;
  const int64_t first_, n_;
  int64_t part_ = 0, done_ = 0;
};

}  // namespace lazyeng::fuse
