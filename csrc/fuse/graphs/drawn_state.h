// csrc/fuse/graphs/drawn_state.h: the state of a device's generator, for kernels that draw as
// torch's do.
//
// A kernel gets the seed and how much each thread has drawn before; then the offset moves on, by
// what each thread may have drawn. Torch's kernels do the same (philox_cuda_state), so the next one
// gets the same numbers whoever drew first. That it is this op's turn to draw is the engine's to
// see to: an op that draws writes the generator's var.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/Generator.h>

#include <mutex>

namespace lazyeng::fuse {

class DrawnState {
 public:
  /// Holds the generator's lock until it is destroyed. Throws if the device has none.
  explicit DrawnState(c10::Device device)
      : generator_(at::globalContext().defaultGenerator(device)), lock_(generator_.mutex()) {}

  uint64_t seed() const { return generator_.current_seed(); }
  uint64_t offset() const { return generator_.get_offset(); }
  /// The offset counts numbers of one thread. `draws`: a multiple of 4, as torch wants it to be.
  void move_on(uint64_t draws) { generator_.set_offset(offset() + draws); }

 private:
  at::Generator generator_;
  std::lock_guard<std::mutex> lock_;
};

}  // namespace lazyeng::fuse
