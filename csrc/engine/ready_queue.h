// csrc/engine/ready_queue.h: ops that may run: a plain list, and a queue ordered by priority.
//
// Not thread safe: a list belongs to one thread, a queue is guarded by its pool's lock. Neither
// owns: the engine's reference to each op keeps it alive. An op is in one of them at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "csrc/engine/op.h"

namespace lazyeng::engine {

/// First in, first out; linked through the ops, so it never allocates.
class ReadyList {
 public:
  bool empty() const noexcept { return head_ == nullptr; }
  Op* front() const noexcept { return head_; }
  Op* back() const noexcept { return tail_; }

  void push_back(Op* op) noexcept {
    op->next_ready_ = nullptr;
    (head_ ? tail_->next_ready_ : head_) = op;
    tail_ = op;
  }

  Op* pop_front() noexcept {
    Op* op = head_;
    head_ = op->next_ready_;
    return op;
  }

  /// Takes out and returns the ops that belong to `queue`.
  ReadyList take(QueueId queue) noexcept {
    ReadyList taken, rest;
    while (!empty()) {
      Op* op = pop_front();
      (op->queue == queue ? taken : rest).push_back(op);
    }
    *this = rest;
    return taken;
  }

  /// Takes out the op that should run first. The list must not be empty.
  Op* take_first_in_order() noexcept;

 private:
  Op* head_ = nullptr;
  Op* tail_ = nullptr;  // valid while head_ is set
};

/// Highest priority first, then push order.
class ReadyQueue {
 public:
  static constexpr uint64_t kNone = ~uint64_t{0};

  bool empty() const noexcept { return size_ == 0; }
  size_t size() const noexcept { return size_; }
  void push(Op* op);
  Op* pop();
  /// The op that pop() would return. The queue must not be empty.
  const Op& front() const noexcept {
    return *(first_is_in_heap() ? heap_.front() : in_order_.front());
  }
  /// Op::order_ of the op that pop() would return; kNone if there is none.
  uint64_t first() const noexcept;

 private:
  bool first_is_in_heap() const noexcept;

  // Most ops become ready in push order: these cost a list append. The others go to the heap.
  ReadyList in_order_;
  std::vector<Op*> heap_;
  size_t size_ = 0;  // of both
};

}  // namespace lazyeng::engine
