// csrc/run/traces/trace.cpp: the threads' logs.
#include "csrc/run/traces/trace.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <memory>
#include <mutex>

#include "csrc/run/python_ref.h"
#include "csrc/run/traces/stream_trace.h"
#include "csrc/stacks/saved_error.h"

namespace lazyeng::run {
namespace {

std::string system_name() {
  char name[16] = "";
  pthread_getname_np(pthread_self(), name, sizeof(name));
  return name;
}

/// The calling thread's `threading.Thread.name`; empty if it has none. Runs no Python code, which
/// might record or be interrupted: py-spy too reads the module's own table. GIL.
std::string name_in_python() {
  const stacks::SavedError kept;
  const PyRef threads = imported("threading", "_active");
  const PyRef ident(PyLong_FromUnsignedLong(PyThread_get_thread_ident()));
  if (!threads || !PyDict_Check(threads.get()) || !ident) return {};
  PyObject* const thread = PyDict_GetItemWithError(threads.get(), ident.get());
  const PyRef name(thread ? PyObject_GetAttrString(thread, "_name") : nullptr);
  const char* const text =
      name && PyUnicode_Check(name.get()) ? PyUnicode_AsUTF8(name.get()) : nullptr;
  return text ? text : "";
}

/// Written by its thread, taken by whoever stops the trace; outlives its thread.
class Log {
 public:
  void add(TraceEvent event) {
    std::string found = look_for_name() ? name_in_python() : std::string();
    std::lock_guard lock(mutex_);
    if (!found.empty()) name_ = std::move(found);
    events_.push_back(std::move(event));
  }
  ThreadTrace take() {
    std::lock_guard lock(mutex_);
    return {thread_, name_, std::move(events_)};
  }

 private:
  /// Once, at its first event with the GIL: when the trace ends the thread may have ended. The
  /// engine's own threads have names.
  bool look_for_name() {
    if (has_looked_ || !holds_gil()) return false;
    has_looked_ = true;
    return !name_.starts_with("lazyeng-");
  }

  const int64_t thread_ = syscall(SYS_gettid);
  bool has_looked_ = false;  // (of the thread alone)
  std::mutex mutex_;         // guards:
  std::string name_ = system_name();
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
  for (const std::shared_ptr<Log>& log : logs()) all.push_back(log->take());
  logs().clear();
  for (ThreadTrace& stream : take_stream_ranges()) all.push_back(std::move(stream));
  return all;
}

}  // namespace lazyeng::run
