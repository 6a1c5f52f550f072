// csrc/run/failures/kernel_warnings.h: warnings that kernels emit on engine threads.
//
// torch would print them on stderr there. They are kept, with the stack that recorded the op, until
// a thread that runs Python waits for something, and then go through Python's `warnings`, as
// warnings of the line that called the op; one that a filter makes an error is chained to it, as
// any deferred failure. Thread-safe.
#pragma once

#include "csrc/run/node.h"

namespace lazyeng::run {

/// Keeps what kernels warn of on the threads that it is set for.
c10::WarningHandler& kernel_warning_handler();

/// The op whose kernel warned, in words.
struct WarningOp {
  uint64_t number = 0;  ///< 0: it has none
  std::string name;
  std::vector<std::string> inputs;
  stacks::StackRef stack, forward_stack;
};

WarningOp op_of(const Node& node);

/// Says which node the kernel that runs in this scope belongs to.
class WarningsOf {
 public:
  explicit WarningsOf(const Node& node);
  ~WarningsOf();
  WarningsOf(const WarningsOf&) = delete;
  WarningsOf& operator=(const WarningsOf&) = delete;

 private:
  const Node* const before_;
};

/// Keeps what the kernel that runs in this scope warns of apart, for who knows its stack later.
class WarningsOfCall {
 public:
  explicit WarningsOfCall(std::vector<c10::Warning>& warned);
  ~WarningsOfCall();
  WarningsOfCall(const WarningsOfCall&) = delete;
  WarningsOfCall& operator=(const WarningsOfCall&) = delete;

 private:
  std::vector<c10::Warning>* const before_;
};

void keep_warnings(std::vector<c10::Warning> warned, const WarningOp& op);

/// While one exists, deliver_warnings does nothing on its thread: waits that belong together are
/// not to be cut short by a warning that a filter turns into an exception.
class WarningsHeld {
 public:
  WarningsHeld();
  ~WarningsHeld();
  WarningsHeld(const WarningsHeld&) = delete;
  WarningsHeld& operator=(const WarningsHeld&) = delete;
};

/// Gives what was kept to Python's `warnings`. Takes the GIL if there is anything. Throws
/// python_error if a filter turns a warning into an exception; the rest is kept then.
void deliver_warnings();

}  // namespace lazyeng::run
