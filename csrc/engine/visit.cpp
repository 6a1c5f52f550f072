// csrc/engine/visit.cpp: a guest takes brief ops and parts from the pool of the queue `cpu`.
#include "csrc/engine/visit.h"

#include <utility>

#include "csrc/engine/threaded_engine.h"

namespace lazyeng::engine {

Visit& this_visit() noexcept {
  static thread_local Visit visit;
  return visit;
}

Lender& this_lender() noexcept {
  static thread_local Lender lender;
  return lender;
}

void Visit::begin(ThreadedEngine& engine) {
  engine_ = &engine;
  arrive();
}

void Visit::end() {
  leave();
  engine_ = nullptr;
}

void Visit::arrive() {
  if (!std::exchange(arrived_, true)) engine_->pool_of(QueueId::cpu).guest_arrives();
}

void Visit::leave() {
  depart();
  if (std::exchange(prepared_, false) && engine_->guest_end_) engine_->guest_end_();
}

void* Visit::go_away() {
  leave();
  return std::exchange(engine_, nullptr);
}

void Visit::come_back(void* engine) {
  engine_ = static_cast<ThreadedEngine*>(engine);
  arrive();
}

void Visit::depart() {
  pass_on();
  if (std::exchange(arrived_, false)) engine_->pool_of(QueueId::cpu).guest_leaves();
}

void Visit::pass_on() {
  if (!next_) return;
  ReadyList one;
  one.push_back(std::exchange(next_, nullptr));
  engine_->pool_of(QueueId::cpu).enqueue(one);
}

std::chrono::microseconds Visit::patience() const noexcept {
  constexpr std::chrono::microseconds kForParts{200};
  return engine_->pool_of(QueueId::cpu).offered_lately() ? kForParts : EventCount::kSpin;
}

bool Visit::sleeps(EventCount& news) {
  if (!engine_->pool_of(QueueId::cpu).guest_sleeps(news)) return false;
  leave();
  return true;
}

void Visit::wakes(EventCount& news) {
  engine_->pool_of(QueueId::cpu).guest_wakes(news);
  arrive();
}

bool Visit::has_one() const noexcept {
  const WorkerPool& pool = engine_->pool_of(QueueId::cpu);
  return next_ || pool.offers_brief() || pool.offers_parts();
}

void Visit::prepare() {
  if (!std::exchange(prepared_, true) && engine_->guest_begin_) engine_->guest_begin_();
}

bool Visit::help() {
  WorkerPool& pool = engine_->pool_of(QueueId::cpu);
  if (!pool.offers_parts()) return false;
  prepare();
  const Runs runs(*this);
  return pool.help();
}

bool Visit::run_one() {
  WorkerPool& pool = engine_->pool_of(QueueId::cpu);
  Op* const op = next_                 ? std::exchange(next_, nullptr)
                 : pool.offers_brief() ? pool.take_brief()
                                       : nullptr;
  if (!op) return help();
  prepare();
  {
    const Runs runs(*this);
    next_ = engine_->perform(op, pool);
  }
  if (next_ && !next_->brief) pass_on();
  arrive();  // in case that the op waited
  return true;
}

}  // namespace lazyeng::engine
