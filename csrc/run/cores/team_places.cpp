// csrc/run/cores/team_places.cpp: a thread that moves to another core, by the set of those it may
// use.
#include "csrc/run/cores/team_places.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "csrc/engine/pause.h"

namespace lazyeng::run {
namespace {

using Clock = std::chrono::steady_clock;

/// Threads that spin already are here by then.
constexpr std::chrono::microseconds kAtOnce{20};
/// Longer than a time slice.
constexpr std::chrono::milliseconds kLongestWait{10};

constexpr int kFieldOfCore = 39;

/// One thread at a time: who reads a set that another has changed for a moment would leave it so.
std::mutex& moving() {
  static auto* const instance = new std::mutex;
  return *instance;
}

/// False if it may use no other core, or is gone. (The kernel takes a thread at once from a core
/// that it may not use, and leaves it where it is when it may use that again. What others have set
/// meanwhile stays.)
bool move_away(pid_t thread, const cpu_set_t& from) {
  const std::unique_lock lock(moving(), std::try_to_lock);
  cpu_set_t allowed, others, now;
  if (!lock || sched_getaffinity(thread, sizeof(allowed), &allowed) != 0) return false;
  CPU_AND(&others, &allowed, &from);
  CPU_XOR(&others, &allowed, &others);
  if (CPU_COUNT(&others) == 0 || sched_setaffinity(thread, sizeof(others), &others) != 0)
    return false;
  if (sched_getaffinity(thread, sizeof(now), &now) == 0 && CPU_EQUAL(&now, &others))
    sched_setaffinity(thread, sizeof(allowed), &allowed);
  return true;
}

/// The core that it runs on, or waits for; -1 if it sleeps, or is gone.
int core_of(pid_t thread) {
  char path[64], text[512];
  std::snprintf(path, sizeof(path), "/proc/self/task/%d/stat", thread);
  const int file = ::open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return -1;
  const ssize_t size = ::read(file, text, sizeof(text) - 1);
  ::close(file);
  if (size <= 0) return -1;
  text[size] = 0;
  // (The second field is its name, in parentheses, and may have any characters.)
  const char* at = std::strrchr(text, ')');
  if (!at || std::strncmp(at, ") R", 3) != 0) return -1;
  for (int field = 2; at && field < kFieldOfCore; ++field) at = std::strchr(at + 1, ' ');
  return at ? std::atoi(at) : -1;
}

}  // namespace

TeamPlaces::TeamPlaces() : maker_(gettid()) {
  claim(sched_getcpu());
  members_[0] = maker_;
}

bool TeamPlaces::claim(int core) {
  if (core < 0 || core >= kCores) return true;  // (nobody knows)
  return !taken_[static_cast<size_t>(core)].exchange(true, std::memory_order_relaxed);
}

void TeamPlaces::note_this_thread() noexcept {
  const pid_t thread = gettid();
  if (thread == maker_) return;
  const size_t own = count_.fetch_add(1, std::memory_order_relaxed);
  if (own < members_.size()) members_[own].store(thread, std::memory_order_relaxed);
}

void TeamPlaces::take(int threads) noexcept {
  if (gettid() == maker_) {
    wait_for(threads - 1);
    return;
  }
  if (!claim(sched_getcpu())) move();
  arrived_.fetch_add(1, std::memory_order_release);
}

void TeamPlaces::move() {
  cpu_set_t taken;
  CPU_ZERO(&taken);
  for (size_t core = 0; core < kCores; ++core)
    if (taken_[core].load(std::memory_order_relaxed)) CPU_SET(core, &taken);
  if (!move_away(0, taken)) return;
  claim(sched_getcpu());
  moved_.fetch_add(1, std::memory_order_relaxed);
}

TeamMembers TeamPlaces::members() const {
  TeamMembers found;
  const size_t count = count_.load(std::memory_order_relaxed);
  if (count > members_.size()) return found;
  for (size_t i = 0; i < count; ++i) found.threads[i] = members_[i].load(std::memory_order_relaxed);
  found.count = count;
  return found;
}

int move_apart(const TeamMembers& members) {
  cpu_set_t taken;
  CPU_ZERO(&taken);
  int moved = 0;
  for (size_t i = 0; i < members.count; ++i) {
    const int core = core_of(members.threads[i]);
    if (core < 0 || core >= CPU_SETSIZE) continue;
    if (!CPU_ISSET(static_cast<size_t>(core), &taken))
      CPU_SET(static_cast<size_t>(core), &taken);
    else
      moved += i > 0 && move_away(members.threads[i], taken);
  }
  return moved;
}

void TeamPlaces::wait_for(int others) const {
  const Clock::time_point begin = Clock::now();
  const auto here = [&] { return arrived_.load(std::memory_order_acquire) >= others; };
  while (!engine::spin_until(here, kAtOnce) && Clock::now() - begin < kLongestWait)
    std::this_thread::sleep_for(kAtOnce);
}

}  // namespace lazyeng::run
