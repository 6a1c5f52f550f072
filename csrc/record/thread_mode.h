// csrc/record/thread_mode.h: how the calling thread records.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

namespace lazyeng::record {

enum class Mode : uint8_t {
  async,     ///< the engine starts work as soon as it pays
  deferred,  ///< nothing runs until something reads or synchronizes
  sync,      ///< every op runs at the call and raises there
};

struct ThreadMode {
  Mode mode = Mode::async;
  uint32_t depth = 0;  ///< lazy() blocks around the caller; inside, plain tensors record too
  uint64_t block = 0;  ///< number of the innermost one; 0 outside

  bool inside() const { return depth != 0; }
};

void set_default_mode(Mode mode);
Mode default_mode();
/// The engine's threads end with the program: from here on each op runs at the call, whatever mode
/// is asked for, also in blocks that are open. (Handlers registered before ours, destructors and
/// daemon threads come later.)
void record_in_sync_only();
bool records_in_sync_only();

namespace detail {
inline constinit thread_local ThreadMode thread_mode;
inline constinit std::atomic<bool> sync_only{false};
const ThreadMode& mode_outside();
const ThreadMode& mode_in_sync_only();
}  // namespace detail

/// The calling thread's mode. Outside any block: that of the thread for which it works (autograd's
/// own threads, one for each GPU, run backward passes for others), or the default mode.
inline const ThreadMode& thread_mode() {
  const ThreadMode& current = detail::thread_mode;
  if (detail::sync_only.load(std::memory_order_relaxed)) [[unlikely]]
    return detail::mode_in_sync_only();
  return current.depth != 0 ? current : detail::mode_outside();
}

/// Enters a block; returns its number.
uint64_t enter_block(Mode mode);
/// Leaves it. Tasks that take turns on a thread, and generators, may leave an outer block first:
/// what then counts is the innermost of those that are still open.
void leave_block(uint64_t block);

/// Whether it is one of the calling thread's.
bool is_open_here(uint64_t block);
/// Whether all other blocks around the calling thread are of mode sync, which holds nothing back.
bool alone_holds_back(uint64_t block);

struct OpenBlock {
  Mode mode;
  uint64_t number;
};

/// As if no block were around, for a scope.
class OutsideBlock {
 public:
  OutsideBlock();
  ~OutsideBlock();
  OutsideBlock(const OutsideBlock&) = delete;
  OutsideBlock& operator=(const OutsideBlock&) = delete;

 private:
  const bool active_;
  std::vector<OpenBlock> blocks_;
};

}  // namespace lazyeng::record
