// csrc/run/failures/failure_log.h: the failures that nobody has heard of yet.
//
// What is read raises by itself. Those that nobody reads are told of by synchronize(), at the end
// of a lazy() block if plain tensors should have been written, or by a warning when they die.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "csrc/run/failures/failure.h"

namespace lazyeng::run {

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
  /// That of the op for which autograd has made the node (Node::autograd_node), if it has not been
  /// told of.
  std::shared_ptr<FailureRoot> of_autograd_node(uint64_t node);
  /// Those that are unreported now. They are out of the log, until they are put back.
  struct Unreported;
  Unreported unreported();
  void put_back(Unreported unreported);
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
    /// Who tells of it.
    enum class Kind : uint8_t {
      held,      ///< whoever reads a failed tensor; over when that is gone
      dropped,   ///< nobody but the log
      of_block,  ///< the block, which should have written plain tensors
      shared,    ///< whoever reads the lazy tensors, and the block if somebody has a plain one
    };
    Kind kind;
    std::weak_ptr<FailureRoot> root;
    std::shared_ptr<FailureRoot> kept = {};  ///< the same, of what nobody else need hold
    uint64_t block = 0;                      ///< whose write failed; the root may be of another
    std::vector<Ref<engine::Var>> plain = {};
    uint64_t autograd_node = 0;  ///< that of the root

    bool is_of_block() const { return kind == Kind::of_block || kind == Kind::shared; }
    bool is_over() const {
      return plain.empty() && (kept ? kept->reported.load() : root.expired());
    }
  };

 public:
  struct Unreported {
    std::vector<std::shared_ptr<FailureRoot>> roots;  ///< each once, in the order of creation

   private:
    friend class FailureLog;
    std::vector<Item> items;
  };

 private:
  void add(Item item);
  std::vector<Item> take_over_locked();
  void set_items_locked(std::vector<Item> items);
  void note_locked(const Item& item);
  bool is_open_locked(uint64_t block) const;
  bool is_held_locked(const engine::Var& var) const;

  std::mutex mutex_;
  std::vector<Item> items_;
  /// The roots of items_ that have an autograd node, by that: each backward op looks here while
  /// some failure is alive.
  std::unordered_map<uint64_t, std::weak_ptr<FailureRoot>> by_autograd_node_;
  std::vector<uint64_t> open_blocks_;
  size_t sweep_at_ = 64;
};

FailureLog& failure_log();

}  // namespace lazyeng::run
