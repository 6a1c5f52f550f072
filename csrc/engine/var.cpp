// csrc/engine/var.cpp: what any thread may ask of a var.
#include "csrc/engine/var.h"

#include <mutex>

#include "csrc/engine/op.h"

namespace lazyeng::engine {

bool Var::idle() const {
  std::lock_guard lock(mutex_);
  return !head_ && !writer_ && granted_reads_ == granted_marks_;
}

// An op gives a claim up under our lock, before the engine drops its reference.
std::vector<Ref<Op>> Var::pending_ops() const {
  std::vector<Ref<Op>> ops;
  for (size_t room = 16;; room *= 2) {
    ops.clear();  // (neither this nor what follows under the lock)
    ops.reserve(room);
    std::lock_guard lock(mutex_);
    if (writer_) ops.emplace_back(writer_);
    const Access* access = head_;
    for (; access && ops.size() < room; access = access->next) ops.emplace_back(access->op);
    if (!access) return ops;
  }
}

FailurePtr Var::failure() const {
  if (!failed_.load(std::memory_order_acquire)) return nullptr;
  std::lock_guard lock(mutex_);
  return failure_;
}

}  // namespace lazyeng::engine
