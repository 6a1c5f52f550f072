// csrc/record/process/fork.cpp: how the recorder gets through a fork.
//
// before_fork leaves the recorder so that a child can go on with it: nobody is inside the gate, no
// op is pending, no engine thread exists. From then on until the fork only threads with the GIL get
// at the recorder (on the direct way, direct.h), and the fork itself happens with the GIL held.
// What they record stands in the window, or with the stopped engine, in both processes, and runs in
// both, as everything does that was recorded before a fork.
//
// That leaves the locks that destructors of values take, which run anywhere, without the GIL and
// outside the gate (autograd drops saved tensors). Those are leaves, held for a moment, and never
// across anything that wants the GIL: the forking thread takes them all in the very moment of the
// fork (pthread_atfork), so that no Python code runs meanwhile.
#include "csrc/record/process/fork.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <pthread.h>

#include <thread>

#include "csrc/fuse/device/kernel_requests.h"
#include "csrc/record/forward_stacks.h"
#include "csrc/record/process/gate.h"
#include "csrc/record/process/signals.h"
#include "csrc/record/thread_mode.h"
#include "csrc/run/cores/openmp_team.h"
#include "csrc/run/device/launch_log.h"
#include "csrc/run/failures/failure_log.h"
#include "csrc/run/memory/buffers.h"
#include "csrc/run/plain/plain_storage.h"
#include "csrc/run/plain/unseen_writers.h"
#include "csrc/run/python_ref.h"

namespace lazyeng::record {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

/// Written in the moment of the fork, and with the GIL.
bool child_has_no_engine = false;

/// Forks within hooks of the calling thread's fork, or within handlers that run there: the engine
/// stands already.
thread_local constinit unsigned inner_forks = 0;

/// By a handler of a signal, of the calling thread's fork.
thread_local std::exception_ptr raised_meanwhile;

// In the order in which they nest: the table of plain storages makes vars.
void hold_leaves() {
  run::SiblingGroup::mutex().lock();
  run::plain_storages().hold();
  run::lendings().hold();
  run::Node::hold_pool();
  run::Value::hold_pool();
  run::StorageVar::hold_pool();
  run::hold_buffers();
  fuse::kernel_requests().hold();
}

void let_go_of_leaves() {
  fuse::kernel_requests().let_go();
  run::let_go_of_buffers();
  run::StorageVar::let_go_of_pool();
  run::Value::let_go_of_pool();
  run::Node::let_go_of_pool();
  run::lendings().let_go();
  run::plain_storages().let_go();
  run::SiblingGroup::mutex().unlock();
}

void in_child() {
  let_go_of_leaves();
  fuse::kernel_requests().after_fork_in_child();
  run::openmp_helpers().after_fork_in_child();
  run::launches_after_fork_in_child();
  run::plain_storages().after_fork_in_child();
  forget_newest_in_child();
  child_has_no_engine = Gate::is_closed_by_us();
  inner_forks = 0;
  Gate::after_fork_in_child();
}

/// With the gate closed. False if not everything recorded so far has run within `patience`.
bool stop_engine(Recorder& recorder, milliseconds patience) {
  const auto until = steady_clock::now() + patience;
  const engine::Interrupt impatient = [&] { return steady_clock::now() > until; };
  recorder.flush();
  if (recorder.engine().wait_for_all(impatient) == engine::WaitResult::interrupted) return false;
  recorder.stop_threads();
  if (recorder.engine().stop(impatient) == engine::WaitResult::done) return true;
  recorder.start_threads();
  return false;
}

/// Waits, while others go on, for what is recorded. Returns what a handler of a signal raised.
std::exception_ptr complete_most(Recorder& recorder) {
  std::exception_ptr raised;
  const Gate::Inside inside;  // another thread may be forking
  recorder.flush();
  recorder.engine().wait_for_all([&] { return (raised = raised_by_signal()) != nullptr; });
  return raised;
}

void start_engine(Recorder& recorder) {
  recorder.engine().start();
  recorder.start_threads();
}

/// torch's thread pool (pthreadpool) does not survive a fork: the first at::set_num_threads in the
/// child, which the first parallel kernel of each thread calls too, makes a new one, and fails in
/// two threads at the same time ("Invalid thread pool!"). So one thread makes it before there are
/// others; not the forking one, whose own number of threads may be another than the process's.
void renew_torch_thread_pool() { std::thread(at::init_num_threads).join(); }

/// Of threads that the child does not have: nobody else will leave them.
void leave_blocks_of_others(Recorder& recorder) {
  for (const uint64_t block : run::failure_log().open_blocks())
    if (!is_open_here(block)) recorder.forget_failures(run::failure_log().leave_block(block));
}

// A kernel written in Python may wait for a lock of the program, held by a thread that stands
// before the closed gate. So nobody is patient for ever: the gate opens for a moment, in which that
// thread goes on, and closes again. Each time the patience is twice as long, so that what merely
// takes long comes to an end as well.
//
// Handlers of signals run while the gate is open only: they may record and wait. (A child that one
// of them forks loses its gate, as any that is forked within a wait.)
std::exception_ptr close_for_fork(Recorder& recorder) {
  const run::NoGil released;
  for (milliseconds patience(50);; patience *= 2) {
    if (std::exception_ptr raised = complete_most(recorder)) return raised;
    if (Gate::close(patience)) {
      if (stop_engine(recorder, patience)) return nullptr;
      Gate::open();
    }
    std::this_thread::sleep_for(milliseconds(1));
  }
}

void start_in_child(Recorder& recorder) {
  if (!std::exchange(child_has_no_engine, false)) return;
  renew_torch_thread_pool();
  start_engine(recorder);
  leave_blocks_of_others(recorder);
}

}  // namespace

// Before other threads can call operators: torch asks once what the CPU can do, which takes a
// millisecond, under the guard of a static variable. A child of a fork in that moment would wait
// for it for ever, in its first operator (also without lazyeng). Each operator's own first call has
// such a guard as well, for some microseconds; nothing can be done about those here.
void install_fork_handlers() {
  at::get_cpu_capability();
  pthread_atfork(&hold_leaves, &let_go_of_leaves, &in_child);
}

// Python cannot be kept from forking by a hook, and only prints what one raises. So if a handler
// raises while we wait (Ctrl-C), the wait ends, the process forks as from within an op, with a
// child whose gate is lost, and the parent gets the exception when os.fork() returns.
void before_fork(Recorder& recorder) {
  if (Gate::is_closed_by_us()) {
    ++inner_forks;
    return;
  }
  if (Gate::is_inside() || Gate::is_lost()) return;
  raised_meanwhile = close_for_fork(recorder);
}

std::exception_ptr after_fork_in_parent(Recorder& recorder) {
  if (inner_forks != 0) {
    --inner_forks;
    return nullptr;
  }
  if (Gate::is_closed_by_us()) {
    start_engine(recorder);
    Gate::open();
  }
  return std::exchange(raised_meanwhile, nullptr);
}

bool after_fork_in_child(Recorder& recorder) {
  raised_meanwhile = nullptr;
  if (Gate::is_lost()) return false;
  start_in_child(recorder);
  return true;
}

EngineWhileForking::EngineWhileForking(Recorder& recorder) {
  if (child_has_no_engine) [[unlikely]] {
    const run::Gil gil;
    start_in_child(recorder);
  }
  if (!Gate::is_closed_by_us()) return;
  start_engine(recorder);
  Gate::open();
  reopened_ = &recorder;
}

EngineWhileForking::~EngineWhileForking() {
  if (!reopened_) return;
  std::exception_ptr raised = close_for_fork(*reopened_);
  if (!raised_meanwhile) raised_meanwhile = std::move(raised);
}

}  // namespace lazyeng::record
