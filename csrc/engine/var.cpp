// csrc/engine/var.cpp: what any thread may ask of a var.
#include "csrc/engine/var.h"

#include <mutex>

#include "csrc/engine/op.h"

namespace lazyeng::engine {

bool Var::idle() const {
  std::lock_guard lock(mutex_);
  return !head_ && !writer_ && granted_reads_ == 0;
}

// An op gives a claim up under our lock, before the engine drops its reference.
std::vector<Ref<Op>> Var::pending_ops() const {
  std::vector<Ref<Op>> ops;
  std::lock_guard lock(mutex_);
  if (writer_) ops.emplace_back(writer_);
  for (const Access* access = head_; access; access = access->next) ops.emplace_back(access->op);
  return ops;
}

FailurePtr Var::failure() const {
  if (!failed_.load(std::memory_order_acquire)) return nullptr;
  std::lock_guard lock(mutex_);
  return failure_;
}

}  // namespace lazyeng::engine
