// csrc/engine/reserve.cpp: pieces of memory, and the handler that gives them back.
#include "csrc/engine/reserve.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <new>

namespace lazyeng::engine {
namespace {

/// Small enough that malloc does not ask the system for each, which it would return there.
constexpr size_t kPieceBytes = size_t{64} << 10;
constexpr size_t kPieces = 64;

std::array<std::atomic<void*>, kPieces> pieces{};
std::atomic<size_t> missing{kPieces};
std::new_handler before = nullptr;
thread_local bool filling = false;  // a piece is not to be made of another

/// False: nothing is left.
bool give_a_piece_back() noexcept {
  for (std::atomic<void*>& piece : pieces) {
    void* const memory = piece.exchange(nullptr, std::memory_order_acq_rel);
    if (!memory) continue;
    missing.fetch_add(1, std::memory_order_release);
    ::operator delete(memory);
    return true;
  }
  return false;
}

/// Called by operator new, which tries again once it returns.
void handle_shortage() {
  if (Owing::active() && !filling && give_a_piece_back()) return;
  if (before) return before();
  throw std::bad_alloc();
}

bool fill(std::atomic<void*>& piece) noexcept {
  if (piece.load(std::memory_order_relaxed)) return true;
  filling = true;
  void* const memory = ::operator new(kPieceBytes, std::nothrow);
  filling = false;
  if (!memory) return false;
  void* expected = nullptr;
  if (piece.compare_exchange_strong(expected, memory, std::memory_order_acq_rel))
    missing.fetch_sub(1, std::memory_order_release);
  else
    ::operator delete(memory);
  return true;
}

}  // namespace

bool fill_reserve() noexcept {
  if (missing.load(std::memory_order_acquire) == 0) return true;
  for (std::atomic<void*>& piece : pieces)
    if (!fill(piece)) return false;
  return true;
}

void install_reserve() {
  static const bool once = [] {
    before = std::set_new_handler(&handle_shortage);
    return true;
  }();
  static_cast<void>(once);
  fill_reserve();
}

}  // namespace lazyeng::engine
