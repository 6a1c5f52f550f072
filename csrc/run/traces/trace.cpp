// csrc/run/traces/trace.cpp: the threads' logs.
#include "csrc/run/traces/trace.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <memory>
#include <mutex>

#include "csrc/run/traces/stream_trace.h"

namespace lazyeng::run {
namespace {

std::string name_of_this_thread() {
  char name[16] = "";
  pthread_getname_np(pthread_self(), name, sizeof(name));
  return name;
}

/// Written by its thread, taken by whoever stops the trace; outlives its thread.
class Log {
 public:
  void add(TraceEvent event) {
    std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
  }
  std::vector<TraceEvent> take() {
    std::lock_guard lock(mutex_);
    return std::move(events_);
  }

  const int64_t thread = syscall(SYS_gettid);
  const std::string name = name_of_this_thread();

 private:
  std::mutex mutex_;
  std::vector<TraceEvent> events_;
};

/// A new number each time: a thread whose log belongs to another trace makes a new one.
std::atomic<uint64_t> current_trace{0};
std::mutex logs_mutex;
std::vector<std::shared_ptr<Log>>& logs() {  // guarded by logs_mutex
  static auto* const all = new std::vector<std::shared_ptr<Log>>;
  return *all;
}

Log& log_of_this_thread() {
  struct Own {
    uint64_t of = 0;
    std::shared_ptr<Log> log;
  };
  static thread_local Own own;
  const uint64_t now = current_trace.load(std::memory_order_acquire);
  if (own.of != now) {
    own = {now, std::make_shared<Log>()};
    std::lock_guard lock(logs_mutex);
    logs().push_back(own.log);
  }
  return *own.log;
}

}  // namespace

void trace(TraceEvent event) noexcept {
  if (event.begin == 0) return;
  event.end = trace_time();
  if (event.end == 0) return;
  try {
    log_of_this_thread().add(std::move(event));
  } catch (...) {  // no memory for the log: the program is more important
  }
}

bool start_trace() {
  std::lock_guard lock(logs_mutex);
  if (tracing()) return false;
  logs().clear();
  drop_stream_ranges();
  current_trace.fetch_add(1, std::memory_order_release);
  detail::tracing.store(true, std::memory_order_release);
  return true;
}

std::vector<ThreadTrace> stop_trace() {
  // (Under the lock: another thread may start the next trace at once.)
  std::lock_guard lock(logs_mutex);
  detail::tracing.store(false, std::memory_order_relaxed);
  std::vector<ThreadTrace> all;
  for (const std::shared_ptr<Log>& log : logs())
    all.push_back({log->thread, log->name, log->take()});
  logs().clear();
  for (ThreadTrace& stream : take_stream_ranges()) all.push_back(std::move(stream));
  return all;
}

}  // namespace lazyeng::run
