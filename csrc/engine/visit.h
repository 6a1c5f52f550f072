// csrc/engine/visit.h: how a wait sees the thread that waits: as a guest, or as a worker.
#pragma once

#include <chrono>

#include "csrc/engine/guest.h"
#include "csrc/engine/op.h"
#include "csrc/engine/worker_pool.h"

namespace lazyeng::engine {

class ThreadedEngine;

/// The calling thread as a guest of an engine's CPU pool, if it is one.
class Visit final : public Guest {
 public:
  bool run_one() override;
  bool has_one() const noexcept override;
  void arrive() override;
  void leave() override;
  void* go_away() override;
  void come_back(void* engine) override;
  std::chrono::microseconds patience() const noexcept override;
  bool sleeps(EventCount& news) override;
  void wakes(EventCount& news) override;

  void begin(ThreadedEngine& engine);
  void end();
  void depart();
  const ThreadedEngine* engine() const noexcept { return engine_; }
  bool runs_op() const noexcept { return runs_op_; }

 private:
  /// While it runs an op, or parts of one: it is no guest for what that waits for.
  class Runs {
   public:
    explicit Runs(Visit& visit) : visit_(visit) { visit_.runs_op_ = true; }
    ~Runs() { visit_.runs_op_ = false; }
    Runs(const Runs&) = delete;

   private:
    Visit& visit_;
  };

  void pass_on();
  void prepare();
  bool help();

  ThreadedEngine* engine_ = nullptr;
  Op* next_ = nullptr;     // made ready by the last one, brief; nobody else knows it
  bool arrived_ = false;   // counted by the pool
  bool prepared_ = false;  // between the owner's hooks
  bool runs_op_ = false;
};
/// Of the calling thread.
Visit& this_visit() noexcept;

/// A worker of a pool that lends places, as a wait sees it: it runs nothing itself.
class Lender final : public Guest {
 public:
  bool run_one() override { return false; }
  bool has_one() const noexcept override { return false; }
  void arrive() override {}
  void leave() override {}
  void* go_away() override { return nullptr; }
  void come_back(void*) override {}
  std::chrono::microseconds patience() const noexcept override { return EventCount::kSpin; }
  bool sleeps(EventCount&) override {
    pool_->lend_place();
    return true;
  }
  void wakes(EventCount&) override { pool_->take_place_back(); }

  void works_in(WorkerPool& pool) { pool_ = &pool; }
  bool has_place() const noexcept { return pool_; }

 private:
  WorkerPool* pool_ = nullptr;
};
/// Of the calling thread.
Lender& this_lender() noexcept;

}  // namespace lazyeng::engine
