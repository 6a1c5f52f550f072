// csrc/run/failures/kernel_warnings.cpp: from torch's warning handler to Python's `warnings`.
#include "csrc/run/failures/kernel_warnings.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "csrc/run/failures/python_error.h"
#include "csrc/run/python_ref.h"

namespace lazyeng::run {
namespace {

struct Kept {
  c10::Warning warning;
  WarningOp op;
};

// A program that never waits keeps this many; what comes later says the same in all likelihood.
constexpr size_t kMostKept = 1024;

struct Store {
  std::mutex mutex;
  std::deque<Kept> kept;
  std::atomic<bool> any{false};
};
Store& store() {
  static Store* const instance = new Store;  // engine threads may outlive statics
  return *instance;
}

thread_local const Node* running = nullptr;
thread_local std::vector<c10::Warning>* apart = nullptr;
thread_local int held = 0;

void keep(const c10::Warning& warning, WarningOp op) {
  Store& to = store();
  std::lock_guard lock(to.mutex);
  if (to.kept.size() >= kMostKept) return;
  to.kept.push_back({warning, std::move(op)});
  to.any.store(true, std::memory_order_release);
}

class Handler final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    if (apart)
      apart->push_back(warning);
    else
      keep(warning, running ? op_of(*running) : WarningOp());
  }
};

std::optional<Kept> next() {
  Store& from = store();
  std::lock_guard lock(from.mutex);
  if (from.kept.empty()) return std::nullopt;
  Kept first = std::move(from.kept.front());
  from.kept.pop_front();
  if (from.kept.empty()) from.any.store(false, std::memory_order_relaxed);
  return first;
}

/// The text as torch's own handler for Python has it.
std::string text_of(const c10::Warning& warning) {
  const c10::SourceLocation& at = warning.source_location();
  if (warning.verbatim() || !at.file) return warning.msg();
  return warning.msg() + " (Triggered internally at " + at.file + ":" + std::to_string(at.line) +
         ".)";
}

/// False with a Python error set if it became an exception.
bool deliver(const Kept& kept) {
  const bool deprecation = std::holds_alternative<c10::DeprecationWarning>(kept.warning.type());
  PyRef function = imported("lazyeng.errors", "warn_of_kernel");
  PyRef inputs = string_list(kept.op.inputs);
  PyRef stack(stacks::to_python(kept.op.stack));
  PyRef forward(stacks::to_python(kept.op.forward_stack));
  if (!function || !inputs || !stack || !forward) return false;
  const std::string text = text_of(kept.warning);  // (of anybody's kernel: not always UTF-8)
  PyRef shown(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
  if (!shown) return false;
  PyRef result(PyObject_CallFunction(
      function.get(), "OOsOOOK", deprecation ? PyExc_DeprecationWarning : PyExc_UserWarning,
      shown.get(), kept.op.name.c_str(), inputs.get(), stack.get(), forward.get(),
      static_cast<unsigned long long>(kept.op.number)));
  return static_cast<bool>(result);
}

}  // namespace

c10::WarningHandler& kernel_warning_handler() {
  static Handler* const handler = new Handler;  // engine threads may outlive statics
  return *handler;
}

WarningOp op_of(const Node& node) {
  return {node.number, node.info.torch_name, node.describe_inputs(), node.stack,
          node.forward_stack};
}

WarningsOf::WarningsOf(const Node& node) : before_(running) { running = &node; }
WarningsOf::~WarningsOf() { running = before_; }

WarningsOfCall::WarningsOfCall(std::vector<c10::Warning>& warned)
    : before_(std::exchange(apart, &warned)) {}
WarningsOfCall::~WarningsOfCall() { apart = before_; }

void keep_warnings(std::vector<c10::Warning> warned, const WarningOp& op) {
  for (const c10::Warning& warning : warned) keep(warning, op);
}

WarningsHeld::WarningsHeld() { ++held; }
WarningsHeld::~WarningsHeld() { --held; }

void deliver_warnings() {
  if (held || !store().any.load(std::memory_order_acquire)) return;
  Gil gil;
  while (const std::optional<Kept> kept = next()) {
    if (!deliver(*kept)) throw_current_python_error();
  }
}

}  // namespace lazyeng::run
