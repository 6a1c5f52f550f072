// csrc/engine/epoch.cpp: closing and recycling epochs.
#include "csrc/engine/epoch.h"

namespace lazyeng::engine {

uint64_t EpochList::close() {
  if (current_->pushed_ == 0) return last_number_ - 1;  // nothing new: the earlier ones do
  current_->target_.store(current_->pushed_, std::memory_order_seq_cst);
  closed_.push_back(current_);
  const uint64_t number = current_->number_;
  open_next();
  return number;
}

bool EpochList::is_complete(uint64_t number) {
  while (!closed_.empty()) {
    Epoch* oldest = closed_.front();
    if (oldest->number_ > number) return true;
    if (oldest->completed_.load(std::memory_order_seq_cst) != oldest->pushed_) return false;
    closed_.pop_front();
    free_.push_back(oldest);
  }
  return true;
}

void EpochList::open_next() {
  if (free_.empty()) {
    all_.push_back(std::make_unique<Epoch>());
    free_.push_back(all_.back().get());
  }
  current_ = free_.back();
  free_.pop_back();
  current_->target_.store(Epoch::kOpen, std::memory_order_seq_cst);
  current_->completed_.store(0, std::memory_order_relaxed);
  current_->pushed_ = 0;
  current_->number_ = ++last_number_;
}

}  // namespace lazyeng::engine
