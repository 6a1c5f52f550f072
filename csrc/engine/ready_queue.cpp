// csrc/engine/ready_queue.cpp: the order of ready ops.
#include "csrc/engine/ready_queue.h"

#include <algorithm>

namespace lazyeng::engine {

Op* ReadyList::take_first_in_order() noexcept {
  Op* first = head_;
  for (Op* op = head_; op != tail_;) {
    op = op->next_ready_;
    if (op->order_ < first->order_) first = op;
  }
  if (first == head_) return pop_front();
  Op* before = head_;
  while (before->next_ready_ != first) before = before->next_ready_;
  before->next_ready_ = first->next_ready_;
  if (first == tail_) tail_ = before;
  return first;
}

void ReadyQueue::push(Op* op) {
  if (in_order_.empty() || in_order_.back()->order_ < op->order_) return in_order_.push_back(op);
  heap_.push_back(op);
  std::push_heap(heap_.begin(), heap_.end(), [](Op* a, Op* b) { return a->order_ > b->order_; });
}

Op* ReadyQueue::pop() {
  const bool from_heap =
      in_order_.empty() || (!heap_.empty() && heap_.front()->order_ < in_order_.front()->order_);
  if (!from_heap) return in_order_.pop_front();
  std::pop_heap(heap_.begin(), heap_.end(), [](Op* a, Op* b) { return a->order_ > b->order_; });
  Op* op = heap_.back();
  heap_.pop_back();
  return op;
}

uint64_t ReadyQueue::first() const noexcept {
  const uint64_t listed = in_order_.empty() ? kNone : in_order_.front()->order_;
  const uint64_t heaped = heap_.empty() ? kNone : heap_.front()->order_;
  return std::min(listed, heaped);
}

}  // namespace lazyeng::engine
