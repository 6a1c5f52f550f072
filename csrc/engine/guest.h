// csrc/engine/guest.h: a thread that waits, and runs ops meanwhile.
//
// Handing an op to a worker and hearing of its end costs two wake-ups, many times what a small op
// itself costs. A thread that is about to sleep until the op is complete can as well run it. It
// takes ready ops that are marked `brief` only: a wait must end soon after what it waits for is
// there, and soon after Ctrl-C. For the same reason it takes parts of large ops (parts.h), but not
// these themselves, unless they are marked for a thread that would rather run them
// (csrc/run/caller/read_habit.h).
#pragma once

#include <chrono>

namespace lazyeng::engine {

class Engine;
class EventCount;

/// What a wait sees of that. For the waiting thread only.
class Guest {
 public:
  virtual ~Guest() = default;

  /// Runs a brief op that is ready, or parts of one that is offered. False if there is none now.
  virtual bool run_one() = 0;
  /// Whether run_one() would find one. A hint.
  virtual bool has_one() const noexcept = 0;

  /// The thread is going to look (run_one) before it leaves: brief ops need no worker woken.
  virtual void arrive() = 0;
  /// It may not look for a while. Ready ops are passed on to a worker.
  virtual void leave() = 0;
  /// It leaves to call its owner, who may wait in turn, as a guest that comes and goes in between.
  /// Returns what come_back() wants.
  virtual void* go_away() = 0;
  virtual void come_back(void* from) = 0;

  /// How long it looks before it sleeps.
  virtual std::chrono::microseconds patience() const noexcept = 0;
  /// It is going to sleep until `news` is notified, which a thread that offers parts may do, too.
  /// False if parts are offered now: it must not sleep.
  virtual bool sleeps(EventCount& news) = 0;
  /// After sleeps(), whatever that said: it looks again.
  virtual void wakes(EventCount& news) = 0;
};

/// Makes the calling thread a guest of the engine, for the waits in this scope. Ops pushed within
/// it are the guest's as well. Nests. Nothing happens on an engine thread, within an op, or with an
/// engine that has no threads.
class GuestScope {
 public:
  explicit GuestScope(Engine& engine);
  ~GuestScope();
  GuestScope(const GuestScope&) = delete;
  GuestScope& operator=(const GuestScope&) = delete;

 private:
  Engine* engine_;  // null: nothing to end
};

}  // namespace lazyeng::engine
