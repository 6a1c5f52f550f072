// csrc/run/cores/openmp_team.cpp: the thread that makes and ends the idle team.
#include "csrc/run/cores/openmp_team.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <limits>
#include <utility>

#include "csrc/run/cores/spare_cores.h"

namespace lazyeng::run {
namespace {

/// Of the OpenMP library that torch has loaded.
struct OpenMp {
  void (*parallel)(void (*region)(void*), void* data, unsigned threads, unsigned flags);
  int (*pause)(int kind, int device);
  int (*this_device)();
  int (*in_parallel)();
  int (*team_size)();

  static constexpr int kSoft = 1;  // omp_pause_soft

  bool complete() const { return parallel && pause && this_device && in_parallel && team_size; }
};

template <class Function>
void find(const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}

const OpenMp& open_mp() {
  static const OpenMp found = [] {
    OpenMp api{};
    find("GOMP_parallel", api.parallel);
    find("omp_pause_resource", api.pause);
    find("omp_get_initial_device", api.this_device);
    find("omp_in_parallel", api.in_parallel);
    find("omp_get_num_threads", api.team_size);
    return api;
  }();
  return found;
}

/// A program that has not recorded for so long runs eager code.
constexpr std::chrono::milliseconds kLookEvery{20};

/// While the program waits.
constexpr std::chrono::milliseconds kLookAtPlacesEvery{5};

/// A thread whose team has ended has a new one made for so many ops that want it, none of them
/// longer after the one before. What is born spins, and the kernel may put it on the core of its
/// maker, to spin in turns: where a step begins with a lookup, and the worker has the cores for the
/// rest, that took 1 to 10 ms, and the helper a core for up to 17.
constexpr int kWorthATeam = 8;
constexpr std::chrono::milliseconds kInARow{20};

/// The longest step of which the program reads the result that is taken for a habit.
constexpr std::chrono::milliseconds kLately{100};

int allowed_cores() {
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof(mask), &mask) != 0) return std::numeric_limits<int>::max();
  return CPU_COUNT(&mask);
}

/// (A team of two alone is within the cores, and its helper spins for some milliseconds, as there
/// is no other team yet. So where cores are few it has more threads than they are.)
void make_team() {
  constexpr int kFew = 4;
  const int cores = allowed_cores();
  open_mp().parallel([](void*) {}, nullptr, cores <= kFew ? static_cast<unsigned>(cores) + 1 : 2,
                     0);
}

/// What the calling thread has had since its birth; nothing where the kernel does not say.
Crowding::Times times_of_this_thread() {
  Crowding::Times times;
  const int file = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
  if (file < 0) return times;
  char text[96];
  const ssize_t size = read(file, text, sizeof(text) - 1);
  close(file);
  if (size <= 0) return times;
  text[size] = 0;
  char* end = text;
  times.on_core = std::strtoull(end, &end, 10);
  times.in_line = std::strtoull(end, &end, 10);
  return times;
}

struct SharedTimes {
  std::atomic<uint64_t> on_core{0}, in_line{0};
  std::atomic<int> threads{0};

  /// Adds what the calling thread has had since it did so last.
  void add_this_thread() {
    static thread_local Crowding::Times last;
    const Crowding::Times now = times_of_this_thread();
    on_core += now.on_core - last.on_core;
    in_line += now.in_line - last.in_line;
    ++threads;
    last = now;
  }
};

/// Once this returns, the helpers are gone: libgomp joins them.
void end_team() { open_mp().pause(OpenMp::kSoft, open_mp().this_device()); }

/// How many engine threads have a team, so far as they know.
std::atomic<int> engine_teams{0};

/// That of the calling thread.
struct OwnTeam {
  ~OwnTeam() {
    if (ends_with_thread && open_mp().complete()) end();
  }
  void end() {
    end_team();
    has_ended = true;
    if (std::exchange(counted, false)) engine_teams.fetch_sub(1, std::memory_order_relaxed);
  }
  bool is_worth_making() const { return !has_ended || wanted >= kWorthATeam; }

  bool ends_with_thread = false;
  bool counted = false;
  bool is_new = false;           // of an engine thread: no look has been at it
  bool may_share_cores = false;  // (team_places.h)
  // Of a thread of the program:
  bool has_ended = false;  // and nothing that is known of has made one since
  int wanted = 0;          // so often in a row
  std::chrono::steady_clock::time_point wanted_last;
};
// (Its destructor comes before those of libraries, which are made with pthread_key_create.)
thread_local OwnTeam own_team;

}  // namespace

void end_team_with_this_thread() { own_team.ends_with_thread = true; }

void in_team(void (*region)(void*), void* data) {
  if (open_mp().complete())
    open_mp().parallel(region, data, /*threads=*/0, 0);
  else
    region(data);
}

OpenMpHelpers& openmp_helpers() {
  static auto* const instance = new OpenMpHelpers;
  return *instance;
}

void OpenMpHelpers::start() {
  ended_for_fork_ = false;
  if (!open_mp().complete() || runs_) return;
  runs_ = true;
  thread_ = std::thread([this] { work(); });
}

void OpenMpHelpers::stop() {
  end_own_team();
  ended_for_fork_ = true;
  if (!runs_) return;
  {
    std::lock_guard lock(mutex_);
    runs_ = false;
    members_ = {};
  }
  changed_.notify_one();
  thread_.join();
}

void OpenMpHelpers::program_waits(bool waits) {
  {
    std::lock_guard lock(mutex_);
    waiting_ += waits ? 1 : -1;
  }
  changed_.notify_one();
  if (waits) end_own_team();
}

void OpenMpHelpers::program_has_waited() {
  last_wait_.store(Clock::now(), std::memory_order_relaxed);
  if (!has_team_.load(std::memory_order_relaxed)) return;
  { const std::lock_guard lock(mutex_); }  // not between its look and its sleep
  changed_.notify_one();
}

bool OpenMpHelpers::has_waited_lately() const {
  const Clock::time_point last = last_wait_.load(std::memory_order_relaxed);
  return last != Clock::time_point::min() && Clock::now() - last < kLately;
}

void OpenMpHelpers::engine_has_team() {
  if (std::exchange(own_team.counted, true)) return;
  engine_teams.fetch_add(1, std::memory_order_relaxed);
  own_team.is_new = own_team.may_share_cores = true;
}

bool OpenMpHelpers::program_may_have_team() const {
  return own_team.is_worth_making() && !sleep() &&
         engine_teams.load(std::memory_order_relaxed) == 0 && !is_crowded();
}

void OpenMpHelpers::program_wants_team() {
  if (!own_team.has_ended) return;
  const Clock::time_point now = Clock::now();
  if (now - std::exchange(own_team.wanted_last, now) > kInARow) own_team.wanted = 0;
  ++own_team.wanted;
}

void OpenMpHelpers::program_has_team() {
  own_team.has_ended = false;
  own_team.wanted = 0;
}

bool OpenMpHelpers::is_crowded() const {
  return Clock::now() < crowded_until_.load(std::memory_order_relaxed);
}

void OpenMpHelpers::kernel_was_late() { own_team.may_share_cores = true; }

void OpenMpHelpers::look_for_cores() {
  if (!open_mp().complete()) return;
  const Clock::time_point now = Clock::now();
  const bool due = crowding_.is_due(now);
  // (A core that the program records on is not free. Who is in a new team is noted for later.)
  const bool move = spare_cores().program_waits();
  const bool is_new = std::exchange(own_team.is_new, false);
  if (!due && !is_new && !(move && own_team.may_share_cores)) return;
  if (move) own_team.may_share_cores = false;
  if (due) others_.is_at_work(now);
  SharedTimes times;
  TeamPlaces places;
  in_team([&]() noexcept {
    places.note_this_thread();
    if (move) places.take(open_mp().team_size());
    if (due) times.add_this_thread();
  });
  if (own_team.counted) note_members(places.members());
  if (due) look_for_a_line(now, {times.on_core, times.in_line}, times.threads);
}

void OpenMpHelpers::note_members(const TeamMembers& members) {
  const std::lock_guard lock(mutex_);
  members_ = members;
}

void OpenMpHelpers::look_for_a_line(Clock::time_point now, const Crowding::Times& times,
                                    int threads) {
  const Clock::time_point before = crowded_until_.load(std::memory_order_relaxed);
  const auto others = [&](Clock::time_point when) -> std::optional<double> {
    // A team that is larger than the set of cores it may use is as good as another program.
    const int missing = threads - allowed_cores();
    return missing > 0 ? missing : others_.cores(when);
  };
  const Clock::time_point until = crowding_.look(now, times, others);
  if (until == before) return;
  crowded_until_.store(until, std::memory_order_relaxed);
  times_crowded_.fetch_add(1, std::memory_order_relaxed);
  { const std::lock_guard lock(mutex_); }  // not between its look and its sleep
  changed_.notify_one();
}

void OpenMpHelpers::end_own_team() {
  if (!open_mp().complete() || open_mp().in_parallel() || forked_.load(std::memory_order_relaxed))
    return;
  if (own_team.counted) note_members({});
  own_team.end();
}

void OpenMpHelpers::after_fork_in_child() noexcept {
  engine_teams.store(0, std::memory_order_relaxed);
  if (!ended_for_fork_) forked_.store(true, std::memory_order_relaxed);
}

void OpenMpHelpers::note_record() {
  recorded_.store(true, std::memory_order_relaxed);
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(recording_, true)) return;
  }
  changed_.notify_one();
}

/// While the program recorded its core was one of theirs: now it is free, and Linux may not see it
/// for many kernels.
void OpenMpHelpers::move_members_apart(std::unique_lock<std::mutex>& lock) {
  const TeamMembers members = members_;
  lock.unlock();
  move_apart(members);
  lock.lock();
}

void OpenMpHelpers::work() {
  pthread_setname_np(pthread_self(), "lazyeng-openmp");
  end_team_with_this_thread();
  std::unique_lock lock(mutex_);
  while (runs_) {
    spare_cores().look(Clock::now());
    if (waiting_ > 0) {
      move_members_apart(lock);
      if (!runs_) break;  // (told so while the lock was free)
    }
    const bool wanted = recording_ && (is_crowded() || !spare_cores().for_helpers() ||
                                       (waiting_ == 0 && !has_waited_lately()));
    if (wanted != has_team_.load(std::memory_order_relaxed)) {
      lock.unlock();
      wanted ? make_team() : end_team();
      has_team_.store(wanted, std::memory_order_relaxed);
      lock.lock();
    } else if (!recording_) {
      changed_.wait(lock);
    } else if (changed_.wait_for(lock, waiting_ > 0 ? kLookAtPlacesEvery : kLookEvery) ==
                   std::cv_status::timeout &&
               waiting_ == 0) {
      recording_ = recorded_.exchange(false, std::memory_order_relaxed);
    }
  }
  has_team_.store(false, std::memory_order_relaxed);
}

}  // namespace lazyeng::run
