// csrc/run/cores/finding.cpp: one word, that says for what it was found.
#include "csrc/run/cores/finding.h"

namespace lazyeng::run {
namespace {

std::atomic<uint32_t> generation{0};
std::atomic<uint32_t> unread{0};

constexpr int kBitsOfWay = 8;
constexpr uint64_t kWay = Finding::kMostWays;

/// (So many threads that their number has more than 24 bits have no memory for their stacks.)
uint64_t key_of(int threads) {
  return uint64_t{generation.load(std::memory_order_relaxed)} << 32 |
         static_cast<uint64_t>(static_cast<uint32_t>(threads) << kBitsOfWay);
}

}  // namespace

void kernel_settings_changed(bool can_be_read) {
  generation.fetch_add(1, std::memory_order_relaxed);
  if (!can_be_read) unread.fetch_add(1, std::memory_order_relaxed);
}

uint32_t unread_settings() { return unread.load(std::memory_order_relaxed); }

std::optional<int> Finding::of(int threads) const {
  const uint64_t found = found_.load(std::memory_order_relaxed);
  if (found == 0 || (found & ~kWay) != key_of(threads)) return std::nullopt;
  return static_cast<int>(found & kWay);
}

bool Finding::holds() const {
  const uint64_t found = found_.load(std::memory_order_relaxed);
  return (found & kWay) != 0 && found >> 32 == generation.load(std::memory_order_relaxed);
}

void Finding::note(int threads, int way) {
  found_.store(key_of(threads) | static_cast<uint64_t>(way), std::memory_order_relaxed);
}

}  // namespace lazyeng::run
