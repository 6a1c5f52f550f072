// csrc/engine/dependency_tracker.cpp: append, grant, complete.
#include "csrc/engine/dependency_tracker.h"

namespace lazyeng::engine {

namespace {

// Order among ready ops: the higher priority first (16 bits), then the earlier push (48 bits).
uint64_t order_of(int16_t priority, uint64_t push_number) {
  return uint64_t(uint16_t(INT16_MAX - priority)) << 48 | push_number;
}

}  // namespace

void DependencyTracker::push(std::span<Ref<Op>> ops, ReadyList& ready) {
  for (Ref<Op>& op : ops) op->merge_claims();
  for (Ref<Op>& op : ops) op->retain();
  // The push lock makes each op's append to all its vars atomic (see var.h), and orders epochs.
  std::lock_guard lock(push_mutex_);
  Epoch* epoch = epochs_.join(ops.size());
  for (Ref<Op>& op : ops) {
    op->order_ = order_of(op->priority, ++pushes_);
    op->epoch_ = epoch;
    append(*op, ready);
  }
}

void DependencyTracker::append_mark(Op& op, ReadyList& ready) {
  op.turn_ = Op::Turn::wait;
  op.retain();
  append(op, ready);
}

void DependencyTracker::append(Op& op, ReadyList& ready) {
  // One more than the accesses, held until the end: the op cannot become ready half appended.
  const uint32_t size = op.accesses_.size();
  op.ungranted_.store(size + 1, std::memory_order_relaxed);
  uint32_t granted = 0;
  for (Access& access : op.accesses_) granted += append(access);
  if (granted == size ||  // no other thread knows the op
      op.ungranted_.fetch_sub(granted + 1, std::memory_order_acq_rel) == granted + 1)
    ready.push_back(&op);
}

bool DependencyTracker::is_mark(const Op& op) { return op.turn_ == Op::Turn::wait; }

void DependencyTracker::grant_read(Var& var, const Op& op) {
  ++var.granted_reads_;
  var.granted_marks_ += is_mark(op);
}

bool DependencyTracker::append(Access& access) {
  Var& var = *access.var;
  std::lock_guard lock(var.mutex_);
  if (access.write)
    var.pending_writes_.store(var.pending_writes_.load(std::memory_order_relaxed) + 1,
                              std::memory_order_relaxed);
  // V1: nothing overtakes what is queued. V2: a read joins reads, a write is alone.
  const bool free = !var.writer_ && (!access.write || var.granted_reads_ == 0);
  if (!var.head_ && free) {
    if (access.write)
      var.writer_ = access.op;
    else
      grant_read(var, *access.op);
    return true;
  }
  (var.head_ ? var.tail_->next : var.head_) = &access;  // V3: something is granted or queued
  var.tail_ = &access;
  return false;
}

FailurePtr DependencyTracker::failed_input(const Op& op) {
  // Whether one is there may be asked without the lock: a version changes when a write completes,
  // and no write other than our own can be granted (V2). What the last one published happened
  // before our grant, by the lock under which it was granted and by ungranted_. But the failure
  // itself an op of another thread that is never pushed may exchange meanwhile (fail_unpushed).
  FailurePtr first;
  for (const Access& access : op.accesses_)
    if (!access.overwrites && access.var && access.var->failed_.load(std::memory_order_relaxed))
      take_first(first, access.var->failure());
  return first;
}

void DependencyTracker::complete(Op& op, const FailurePtr& failure, ReadyList& ready) {
  for (Access& access : op.accesses_)
    if (access.var) complete(access, op, failure, ready);
}

void DependencyTracker::fail_unpushed(const Op& op, const FailurePtr& failure) {
  for (const Access& access : op.accesses_) {
    if (!access.write || access.var->kind_ != Var::Kind::data) continue;
    FailurePtr replaced = failure;  // (freed after the lock)
    std::lock_guard lock(access.var->mutex_);
    access.var->failure_.swap(replaced);
    access.var->failed_.store(true, std::memory_order_release);
  }
}

void DependencyTracker::complete_early(Op& op, const Var& var, ReadyList& ready) {
  for (Access& access : op.accesses_) {
    if (access.var.get() != &var) continue;
    complete(access, op, nullptr, ready);
    access.var = nullptr;
  }
}

void DependencyTracker::complete(Access& access, const Op& op, const FailurePtr& failure,
                                 ReadyList& ready) {
  Access* granted = retire(access, access.write ? op.failure_of(*access.var, failure) : failure);
  while (granted) {
    Op* waiting = granted->op;
    granted = granted->next;  // read before the count drops: the op may be gone after that
    // One left means that it is ours, and nobody else has business with the count any more.
    if (waiting->ungranted_.load(std::memory_order_acquire) == 1 ||
        waiting->ungranted_.fetch_sub(1, std::memory_order_acq_rel) == 1)
      ready.push_back(waiting);
  }
}

Access* DependencyTracker::retire(Access& access, const FailurePtr& failure) {
  Var& var = *access.var;
  FailurePtr forgotten;  // destroyed after the lock is released
  std::lock_guard lock(var.mutex_);
  if (access.write) {
    publish(var, failure, forgotten);
    var.writer_ = nullptr;
  } else {
    var.granted_marks_ -= is_mark(*access.op);
    if (--var.granted_reads_ != 0) return nullptr;  // V2: a write at the head waits for the others
  }
  return var.head_ ? grant_next(var) : nullptr;
}

void DependencyTracker::publish(Var& var, const FailurePtr& failure, FailurePtr& forgotten) {
  const bool fails = failure && var.kind_ == Var::Kind::data;
  if (fails || var.failed_.load(std::memory_order_relaxed)) {
    forgotten = std::exchange(var.failure_, fails ? failure : nullptr);
    var.failed_.store(fails, std::memory_order_release);
  }
  // After the failure: whoever finds the var no longer pending sees the version's state.
  var.pending_writes_.store(var.pending_writes_.load(std::memory_order_relaxed) - 1,
                            std::memory_order_release);
}

// Detaches what is granted now, that nothing is granted: a write, or all reads up to the next one.
// The result is linked by next and no longer part of the queue, so it is walked without the lock.
Access* DependencyTracker::grant_next(Var& var) {
  Access* const first = var.head_;
  Access* last = first;
  if (first->write) {
    var.writer_ = first->op;
  } else {
    grant_read(var, *first->op);
    for (; last->next && !last->next->write; last = last->next) grant_read(var, *last->next->op);
  }
  var.head_ = std::exchange(last->next, nullptr);
  return first;
}

uint64_t DependencyTracker::close_epoch() {
  std::lock_guard lock(push_mutex_);
  return epochs_.close();
}

bool DependencyTracker::is_complete(uint64_t epoch) {
  std::lock_guard lock(push_mutex_);
  return epochs_.is_complete(epoch);
}

}  // namespace lazyeng::engine
