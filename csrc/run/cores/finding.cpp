// csrc/run/cores/finding.cpp: one word, that says for what it was found.
#include "csrc/run/cores/finding.h"

namespace lazyeng::run {
namespace {

std::atomic<uint32_t> generation{0};
std::atomic<uint32_t> unread{0};

uint64_t key_of(int threads) {
  return uint64_t{generation.load(std::memory_order_relaxed)} << 32 |
         static_cast<uint64_t>(static_cast<uint32_t>(threads)) << 1;
}

}  // namespace

void kernel_settings_changed(bool can_be_read) {
  generation.fetch_add(1, std::memory_order_relaxed);
  if (!can_be_read) unread.fetch_add(1, std::memory_order_relaxed);
}

uint32_t unread_settings() { return unread.load(std::memory_order_relaxed); }

std::optional<bool> Finding::of(int threads) const {
  const uint64_t found = found_.load(std::memory_order_relaxed);
  if (found == 0 || found >> 1 != key_of(threads) >> 1) return std::nullopt;
  return (found & 1) != 0;
}

bool Finding::holds() const {
  const uint64_t found = found_.load(std::memory_order_relaxed);
  return (found & 1) != 0 && found >> 32 == generation.load(std::memory_order_relaxed);
}

void Finding::note(int threads, bool same) {
  found_.store(key_of(threads) | static_cast<uint64_t>(same), std::memory_order_relaxed);
}

}  // namespace lazyeng::run
