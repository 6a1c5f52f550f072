// csrc/run/failure.h: what a failed version carries: the exception, the op, its creation stack, and
// the path from the failed op to the version at hand.
//
// One FailureRoot per op that failed; every version that its failure reaches carries an OpFailure,
// which shares the root. Neither holds a tensor or a frame. Destructors may take the GIL, so the
// engine drops failures without holding locks.
#pragma once

#include <Python.h>

#include <atomic>
#include <exception>
#include <mutex>
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

  uint64_t id = 0;
  uint64_t block = 0;               ///< the lazy() block that recorded the op; 0 outside
  std::string name;                 ///< "aten::add.Tensor"
  std::string op;                   ///< "aten.add.Tensor", as torch.ops spells it
  std::string label;                ///< "add#7"
  std::vector<std::string> inputs;  ///< "float32[2,3]@cpu"
  stacks::StackRef stack;
  stacks::StackRef forward_stack;  ///< as Node::forward_stack
  /// An op that may have failed on a device (csrc/run/launch_log.h).
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

/// Failures that no exception and no warning has told of yet, in the order of creation. Of a
/// program that never asks, and drops what has failed, the oldest are warned of when they become
/// too many.
class FailureLog {
 public:
  enum class Holder : uint8_t {
    tensor,  ///< somebody holds a failed tensor: the failure lives as long as that
    log,     ///< nobody does
  };
  void add(const std::shared_ptr<FailureRoot>& root, Holder holder);
  /// An op of a lazy() block failed, or was skipped, and should have written plain tensors, which
  /// cannot carry a failure: the block raises it. `plain` are their vars, held until the block is
  /// left (if it is not already: Ctrl-C ends its last wait): the table of plain tensors holds vars
  /// weakly, and a new one would show the memory as it was before the write.
  void add_of_block(const std::shared_ptr<FailureRoot>& root, uint64_t block,
                    std::vector<Ref<engine::Var>> plain);
  /// The same of an op that wrote through lazy tensors, as which plain tensors were used in the
  /// block, perhaps through views: the lazy ones tell of the failure (see add()), and so does the
  /// block if somebody holds a plain one at its end.
  void add_shared(const std::shared_ptr<FailureRoot>& root, uint64_t block,
                  std::vector<Ref<engine::Var>> shared);
  /// Those that are unreported now.
  std::vector<std::shared_ptr<FailureRoot>> unreported();
  /// Those of one open lazy() block that failed to write a plain tensor, whoever has told of them:
  /// that the memory is old is told by the block. GIL.
  std::vector<std::shared_ptr<FailureRoot>> of_block(uint64_t block);
  void enter_block(uint64_t block);
  /// Returns the vars of plain tensors that ops of the block, and of no other that is still open,
  /// should have written: they have failed no longer. GIL.
  std::vector<Ref<engine::Var>> leave_block(uint64_t block);
  /// Of all threads.
  std::vector<uint64_t> open_blocks();

 private:
  struct Item {
    std::weak_ptr<FailureRoot> root = {};
    std::shared_ptr<FailureRoot> kept = {};
    bool of_block = false;
    uint64_t block = 0;  ///< whose write failed; the root may be of another
    std::vector<Ref<engine::Var>> plain = {};
    bool shared = false;  ///< by lazy tensors: they may be all that is left of it

    bool is_over() const {
      return plain.empty() && (kept ? kept->reported.load() : root.expired());
    }
    /// Nothing but the log holds it.
    bool is_forgotten() const { return kept && !of_block && plain.empty(); }
  };
  void add(Item item);
  std::vector<Item> take_over_locked();
  bool is_open_locked(uint64_t block) const;
  bool is_held_locked(const engine::Var& var) const;

  std::mutex mutex_;
  std::vector<Item> items_;
  std::vector<uint64_t> open_blocks_;
  size_t sweep_at_ = 64;
};

FailureLog& failure_log();

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
