// csrc/engine/var.cpp: what any thread may ask of a var.
#include "csrc/engine/var.h"

#include <mutex>

namespace lazyeng::engine {

bool Var::idle() const {
  std::lock_guard lock(mutex_);
  return !head_ && !granted_write_ && granted_reads_ == 0;
}

FailurePtr Var::failure() const {
  if (!failed_.load(std::memory_order_acquire)) return nullptr;
  std::lock_guard lock(mutex_);
  return failure_;
}

}  // namespace lazyeng::engine
