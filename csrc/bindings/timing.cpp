// csrc/bindings/timing.cpp: functions of lazyeng._C for benchmarks: what a worker takes for
// recorded ops, what their kernels take alone, and how far apart two cores are.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/add_cpu_dispatch.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <ATen/ops/mul_cpu_dispatch.h>
#include <ATen/ops/relu_cpu_dispatch.h>
#include <pthread.h>
#include <sched.h>
#include <torch/csrc/autograd/python_variable.h>

#include <atomic>
#include <chrono>
#include <semaphore>
#include <thread>
#include <vector>

#include "csrc/bindings/bindings.h"
#include "csrc/record/process/gate.h"
#include "csrc/record/recorder.h"
#include "csrc/run/caller/as_engine_thread.h"
#include "csrc/run/executor.h"
#include "csrc/run/python_ref.h"

namespace lazyeng::bindings {
namespace {

using Clock = std::chrono::steady_clock;
using Ns = std::chrono::duration<double, std::nano>;

/// Keeps the worker until everything is pushed, and notes when it goes on.
class Hold final : public engine::Op {
 public:
  engine::FailurePtr run() noexcept override {
    holds.release();
    pushed.acquire();
    begin = Clock::now();
    return nullptr;
  }
  std::binary_semaphore holds{0}, pushed{0};
  Clock::time_point begin;
};

/// Notes when it has come to the end of the queue.
class End final : public engine::Op {
 public:
  End() { priority = INT16_MIN; }  // behind all that is ready
  engine::FailurePtr run() noexcept override {
    end = Clock::now();
    reached.release();
    return nullptr;
  }
  std::binary_semaphore reached{0};
  Clock::time_point end;
};

/// What the only worker takes for what `push` gives it, which is all there before it begins. Nobody
/// helps: this thread sleeps.
template <class Push>
double on_the_worker(Push push) {
  const run::NoGil released;
  const record::Gate::Inside inside;
  engine::Engine& engine = record::current_recorder()->engine();
  TORCH_CHECK(engine.num_workers() == 1, "this is measured with one worker");
  const auto hold = make_ref<Hold>();
  const auto end = make_ref<End>();
  engine.admit(0);
  engine.push(Ref<engine::Op>(hold));
  hold->holds.acquire();
  push(engine);
  engine.admit(0);
  engine.push(Ref<engine::Op>(end));
  hold->pushed.release();
  end->reached.acquire();
  return Ns(end->end - hold->begin).count();
}

/// Nanoseconds that a worker takes for everything recorded and not pushed yet.
PyObject* time_window(PyObject*, PyObject*) {
  return guarded([&] {
    return PyFloat_FromDouble(
        on_the_worker([](engine::Engine&) { record::current_recorder()->flush(); }));
  });
}

class Nothing final : public engine::Op, public engine::Pooled<Nothing> {
 public:
  engine::FailurePtr run() noexcept override { return nullptr; }
};

/// Nanoseconds that a worker takes for an op that does nothing, reads two vars and writes a third.
PyObject* time_empty_ops(PyObject*, PyObject* count) {
  const long ops = PyLong_AsLong(count);
  if (PyErr_Occurred()) return nullptr;
  return guarded([&] {
    const auto x = make_ref<engine::Var>(), y = make_ref<engine::Var>();
    return PyFloat_FromDouble(on_the_worker([&](engine::Engine& engine) {
                                std::vector<Ref<engine::Op>> batch;
                                for (long i = 0; i < ops; ++i) {
                                  auto op = make_ref<Nothing>();
                                  op->add_read(x);
                                  op->add_read(y);
                                  op->add_write(make_ref<engine::Var>());
                                  engine.admit(0);
                                  batch.push_back(std::move(op));
                                }
                                engine.push(std::span<Ref<engine::Op>>(batch));
                              }) /
                              static_cast<double>(ops));
  });
}

struct TimedOp {
  const char *name, *overload;
  at::Tensor (*kernel)(const at::Tensor&, const at::Tensor&);
  void (*push_arguments)(torch::jit::Stack&, const at::Tensor&, const at::Tensor&);
};

const TimedOp timed_ops[] = {
    {"aten::add", "Tensor",
     [](const at::Tensor& x, const at::Tensor& y) { return at::cpu::add(x, y); },
     [](torch::jit::Stack& stack, const at::Tensor& x, const at::Tensor& y) {
       torch::jit::push(stack, x, y, c10::Scalar(1));
     }},
    {"aten::mul_", "Tensor",
     [](const at::Tensor& x, const at::Tensor& y) {
       return at::cpu::mul_(const_cast<at::Tensor&>(x), y);
     },
     [](torch::jit::Stack& stack, const at::Tensor& x, const at::Tensor& y) {
       torch::jit::push(stack, x, y);
     }},
    {"aten::relu", "", [](const at::Tensor& x, const at::Tensor&) { return at::cpu::relu(x); },
     [](torch::jit::Stack& stack, const at::Tensor& x, const at::Tensor&) {
       torch::jit::push(stack, x);
     }},
    {"aten::mm", "", [](const at::Tensor& x, const at::Tensor& y) { return at::cpu::mm(x, y); },
     [](torch::jit::Stack& stack, const at::Tensor& x, const at::Tensor& y) {
       torch::jit::push(stack, x, y);
     }},
};

template <class F>
double ns_each(long count, F f) {
  const auto begin = Clock::now();
  for (long i = 0; i < count; ++i) f();
  return Ns(Clock::now() - begin).count() / static_cast<double>(count);
}

/// (name, x, y, count): nanoseconds of the CPU's kernel called directly, and of the same through
/// the dispatcher with its arguments on a stack, as an engine thread calls them.
PyObject* time_kernel(PyObject*, PyObject* args) {
  const char* name = nullptr;
  PyObject *x_object = nullptr, *y_object = nullptr;
  long count = 0;
  if (!PyArg_ParseTuple(args, "sOOl", &name, &x_object, &y_object, &count)) return nullptr;
  return guarded([&]() -> PyObject* {
    const at::Tensor x = THPVariable_Unpack(x_object), y = THPVariable_Unpack(y_object);
    const TimedOp* const op =
        std::find_if(std::begin(timed_ops), std::end(timed_ops),
                     [&](const TimedOp& o) { return o.name == std::string(name); });
    TORCH_CHECK(op != std::end(timed_ops), "no kernel of ", name, " is timed");
    const c10::OperatorHandle handle =
        c10::Dispatcher::singleton().findSchemaOrThrow(op->name, op->overload);
    double direct, boxed;
    {
      const run::NoGil released;
      const run::AsEngineThread as_engine_thread;
      direct = ns_each(count, [&] { op->kernel(x, y); });
      boxed = ns_each(count, [&] {
        torch::jit::Stack stack;
        op->push_arguments(stack, x, y);
        handle.callBoxed(stack);
      });
    }
    return Py_BuildValue("dd", direct, boxed);
  });
}

/// The cores that the process may use.
std::vector<int> allowed_cores() {
  cpu_set_t set;
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  return cores;
}

void stay_on(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

/// Two threads hand a number to each other: nanoseconds for one way.
double time_hand_over(int one, int other) {
  constexpr int kTimes = 20'000;
  alignas(64) std::atomic<int> number{0};
  const auto play = [&](int core, int first) {
    stay_on(core);
    for (int i = first; i < 2 * kTimes; i += 2) {
      while (number.load(std::memory_order_acquire) != i) {
      }
      number.store(i + 1, std::memory_order_release);
    }
  };
  std::thread answers(play, other, 1);
  double took = 0;
  std::thread asks([&] {
    const auto begin = Clock::now();
    play(one, 0);
    took = Ns(Clock::now() - begin).count();
  });
  asks.join();
  answers.join();
  return took / (2 * kTimes);
}

/// How far apart the first two cores are; None if there is one.
PyObject* time_cache_line(PyObject*, PyObject*) {
  return guarded([&]() -> PyObject* {
    const std::vector<int> cores = allowed_cores();
    if (cores.size() < 2) Py_RETURN_NONE;
    double ns;
    {
      const run::NoGil released;
      ns = time_hand_over(cores[0], cores[1]);
    }
    return PyFloat_FromDouble(ns);
  });
}

}  // namespace

PyMethodDef timing_methods[] = {
    {"time_cache_line", time_cache_line, METH_NOARGS, nullptr},
    {"time_window", time_window, METH_NOARGS, nullptr},
    {"time_empty_ops", time_empty_ops, METH_O, nullptr},
    {"time_kernel", time_kernel, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace lazyeng::bindings
