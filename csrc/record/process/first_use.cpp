// csrc/record/process/first_use.cpp: once, by whichever thread comes first.
#include "csrc/record/process/first_use.h"

#include <atomic>

#include "csrc/run/failures/python_error.h"
#include "csrc/run/python_ref.h"

namespace lazyeng::record {
namespace {

std::atomic<bool> armed{false};

}  // namespace

void arm_first_use() { armed.store(true, std::memory_order_relaxed); }

void first_use() {
  if (!armed.load(std::memory_order_relaxed)) [[likely]]
    return;
  if (!armed.exchange(false, std::memory_order_relaxed)) return;
  run::Gil gil;
  const run::PyRef function = run::imported("lazyeng.setup_core", "look_again");
  const run::PyRef done(function ? PyObject_CallNoArgs(function.get()) : nullptr);
  if (done) return;
  arm_first_use();
  run::throw_current_python_error();
}

}  // namespace lazyeng::record
