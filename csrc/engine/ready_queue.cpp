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

bool ReadyQueue::first_is_in_heap() const noexcept {
  return in_order_.empty() || (!heap_.empty() && heap_.front()->order_ < in_order_.front()->order_);
}

void ReadyQueue::push(Op* op) {
  const bool in_order = in_order_.empty() || in_order_.back()->order_ < op->order_;
  if (!in_order) heap_.push_back(op);  // (may throw: the queue is as it was)
  ++size_;
  if (in_order) return in_order_.push_back(op);
  std::push_heap(heap_.begin(), heap_.end(), [](Op* a, Op* b) { return a->order_ > b->order_; });
}

Op* ReadyQueue::pop() {
  --size_;
  if (!first_is_in_heap()) return in_order_.pop_front();
  std::pop_heap(heap_.begin(), heap_.end(), [](Op* a, Op* b) { return a->order_ > b->order_; });
  Op* op = heap_.back();
  heap_.pop_back();
  return op;
}

uint64_t ReadyQueue::first() const noexcept { return empty() ? kNone : front().order_; }

}  // namespace lazyeng::engine
