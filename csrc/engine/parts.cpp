// csrc/engine/parts.cpp: taking parts, and waiting for those that others have taken.
#include "csrc/engine/parts.h"

namespace lazyeng::engine {

bool Parts::help() noexcept {
  bool helped = false;
  for (unsigned i; open() && (i = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) {
    part_(i);
    helped = true;
    if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) all_done_.notify();
  }
  return helped;
}

void Parts::finish() noexcept {
  help();
  all_done_.await([this] { return unfinished_.load(std::memory_order_acquire) == 0; }, {});
}

}  // namespace lazyeng::engine
