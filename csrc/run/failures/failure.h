// csrc/run/failures/failure.h: what a failed version carries: the exception, the op, its creation
// stack, and the path from the failed op to the version at hand.
//
// One FailureRoot per op that failed; every version that its failure reaches carries an OpFailure,
// which shares the root. Neither holds a tensor or a frame. Destructors may take the GIL, so the
// engine drops failures without holding locks.
#pragma once

#include <Python.h>

#include <atomic>
#include <exception>
#include <string>
#include <vector>

#include "csrc/engine/var.h"
#include "csrc/stacks/stack_table.h"

namespace lazyeng::run {

struct FailureRoot {
  FailureRoot() { alive.fetch_add(1, std::memory_order_relaxed); }
  FailureRoot(const FailureRoot&) = delete;
  FailureRoot& operator=(const FailureRoot&) = delete;
  /// Warns about a failure that nobody ever saw.
  ~FailureRoot();

  uint64_t id = 0;                  ///< Node::number
  uint64_t block = 0;               ///< the lazy() block that recorded the op; 0 outside
  uint64_t autograd_node = 0;       ///< as Node::autograd_node
  std::string name;                 ///< "aten::add.Tensor"
  std::string op;                   ///< "aten.add.Tensor", as torch.ops spells it
  std::string label;                ///< "add#7"
  std::vector<std::string> inputs;  ///< "float32[2,3]@cpu"
  stacks::StackRef stack;
  stacks::StackRef forward_stack;  ///< as Node::forward_stack
  /// An op that may have failed on a device (csrc/run/device/launch_log.h).
  struct Candidate {
    std::string op;
    std::vector<std::string> inputs;
    stacks::StackRef stack;
    stacks::StackRef forward_stack;
  };
  std::string lost_device;            ///< "cuda:0"; empty: no device is lost
  std::vector<Candidate> candidates;  ///< what is said above is of the first of them
  size_t others = 0;                  ///< ops that may have failed too, and probably did not
  bool from_python = false;           ///< Python code raised it
  mutable std::exception_ptr error;   ///< dropped once original() has been made of it
  mutable std::atomic<bool> reported{false};

  /// What lazyeng.errors.detach made of the exception at first use: it holds no frame. GIL;
  /// borrowed; null with a Python error set if it cannot be made.
  PyObject* original() const;

  /// How many there are.
  static inline std::atomic<int64_t> alive{0};

 private:
  mutable PyObject* original_ = nullptr;
};

class OpFailure final : public engine::Failure {
 public:
  explicit OpFailure(std::shared_ptr<FailureRoot> root, std::string node);
  /// The same failure one op further along.
  OpFailure(std::shared_ptr<const OpFailure> cause, std::string node);

  uint64_t place() const noexcept override { return root_->id; }
  const std::shared_ptr<FailureRoot>& root() const { return root_; }
  /// Names of the nodes from the failed one on. Of more than kMostNames the last alone, after
  /// those.
  std::vector<std::string> path() const;
  size_t path_length() const { return length_; }
  const std::string& last() const { return last_; }

  static constexpr size_t kMostNames =
      1000;  // (a longer chain could overflow a stack when it dies)

 private:
  std::shared_ptr<FailureRoot> root_;
  std::shared_ptr<const OpFailure> cause_;  // one op before; past kMostNames that of this number
  size_t length_ = 1;
  std::string last_;
};

/// A new exception of the original's type, chained to the creation stack (lazyeng.errors.build).
/// GIL; new reference; marks the root as reported. Null with a Python error set if that failed.
PyObject* build_exception(const OpFailure& failure);
PyObject* build_exception(const FailureRoot& root);

/// Sets the Python error from build_exception. GIL.
void set_python_error(const engine::FailurePtr& failure);
/// The same as a C++ exception that torch turns into that Python error. Takes the GIL.
[[noreturn]] void throw_python_error(const engine::FailurePtr& failure);
/// Throws it if it is none for later: Ctrl-C while a kernel in Python ran on the program's own
/// thread, or SystemExit. Takes the GIL.
void throw_if_interrupt(const engine::FailurePtr& failure);

}  // namespace lazyeng::run
