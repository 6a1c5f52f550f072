// csrc/run/doubts.cpp: a table of the doubted kinds, and stamps that many kinds share.
#include "csrc/run/doubts.h"

#include <array>
#include <mutex>
#include <unordered_map>

namespace lazyeng::run {
namespace {

std::array<std::atomic<uint32_t>, size_t{1} << 12> stamps;

std::atomic<uint32_t>& stamp_of(DoubtedKind kind) { return stamps[kind % stamps.size()]; }

/// Kinds are unbounded, as numbers are part of them: when there are so many they are found anew.
constexpr size_t kMaxKinds = 1 << 14;

struct DoubtTable {
  std::mutex mutex;
  std::unordered_map<DoubtedKind, Doubts> doubted;
  std::atomic<bool> any{false};
};

DoubtTable& doubt_table() {  // never destroyed: the engine's threads may outlive what is
  static auto* const instance = new DoubtTable;
  return *instance;
}

void doubt(DoubtedKind kind, bool Doubts::*what) {
  DoubtTable& known = doubt_table();
  std::lock_guard lock(known.mutex);
  if (known.doubted.size() >= kMaxKinds) known.doubted.clear();
  known.doubted[kind].*what = true;
  known.any.store(true, std::memory_order_release);
}

}  // namespace

Doubts doubts_of(DoubtedKind kind) {
  DoubtTable& known = doubt_table();
  if (!known.any.load(std::memory_order_acquire)) return {};
  std::lock_guard lock(known.mutex);
  const auto found = known.doubted.find(kind);
  return found == known.doubted.end() ? Doubts() : found->second;
}

// First into the table: who sees the new stamp and asks anew is to find the doubt there.
void doubt_layouts(DoubtedKind kind) {
  doubt(kind, &Doubts::layouts);
  stamp_of(kind).fetch_add(1, std::memory_order_release);
}

void doubt_structured_meta(DoubtedKind kind) { doubt(kind, &Doubts::structured); }

uint32_t doubts_stamp(DoubtedKind kind) { return stamp_of(kind).load(std::memory_order_acquire); }

}  // namespace lazyeng::run
