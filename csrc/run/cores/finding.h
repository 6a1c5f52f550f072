// csrc/run/cores/finding.h: whether a kernel run in another way has the same bits, once tried.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

namespace lazyeng::run {

/// Settings of the process that decide which kernels run (oneDNN on or off, reduced precision) are
/// others from now on: what was found no longer holds. Any thread.
/// @param can_be_read  of at::Context, in every version of torch.
void kernel_settings_changed(bool can_be_read);
/// Another number after each change of those that cannot.
uint32_t unread_settings();

/// What a trial has found, for so many threads and the settings of the process then. Any thread.
class Finding {
 public:
  /// Nothing: not tried. 0: the bits are others. Else in which way they are the same.
  std::optional<int> of(int threads) const;
  /// Tried, for whatever number of threads, and the same.
  bool holds() const;
  /// @param way  up to kMostWays, of those that were tried.
  void note(int threads, int way);

  static constexpr int kMostWays = 255;

 private:
  /// Settings, threads, way; 0: nothing.
  std::atomic<uint64_t> found_{0};
};

}  // namespace lazyeng::run
