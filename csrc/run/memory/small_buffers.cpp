// csrc/run/memory/small_buffers.cpp: size classes of small memory.
#include "csrc/run/memory/small_buffers.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "csrc/engine/block_pool.h"

namespace lazyeng::run {
namespace {

#if !defined(__SANITIZE_ADDRESS__)  // which finds uses after free only if memory is really freed

/// A line of a cache, as torch's memory is aligned.
constexpr uint64_t kSmallest = 64;
constexpr size_t kSmallClasses = std::countr_zero(kLargestSmallBuffer / kSmallest) + 1;
/// Of free blocks that no thread has: 2 MiB of the largest ones.
constexpr size_t kMostShared = 32;

void* from_torch(size_t nbytes) { return c10::GetDefaultCPUAllocator()->raw_allocate(nbytes); }
void back_to_torch(void* memory) noexcept { c10::GetDefaultCPUAllocator()->raw_deallocate(memory); }

template <size_t index>
struct SmallClass {
  static constexpr engine::BlockSource source{&from_torch, &back_to_torch, kMostShared};
  static inline constinit engine::BlockPool pool{kSmallest << index, source};
  static inline thread_local constinit engine::BlockPool::Local local;

  static at::DataPtr allocate() {
    void* const memory = pool.take(local);
    return {memory, memory, &give_back, c10::Device(c10::kCPU)};
  }
  static void give_back(void* memory) { pool.give(local, memory); }
};

struct ClassFunctions {
  at::DataPtr (*allocate)();
  c10::DeleterFnPtr give_back;
  engine::BlockPool* pool;
};

template <size_t... index>
constexpr std::array<ClassFunctions, sizeof...(index)> functions_of(std::index_sequence<index...>) {
  return {
      {{&SmallClass<index>::allocate, &SmallClass<index>::give_back, &SmallClass<index>::pool}...}};
}

constexpr auto kClassFunctions = functions_of(std::make_index_sequence<kSmallClasses>());

#endif

}  // namespace

#if !defined(__SANITIZE_ADDRESS__)

at::DataPtr allocate_small_buffer(uint64_t nbytes) {
  return kClassFunctions[std::bit_width((nbytes - 1) / kSmallest)].allocate();
}

bool frees_small_buffers(c10::DeleterFnPtr deleter) {
  return std::ranges::any_of(kClassFunctions,
                             [&](const ClassFunctions& one) { return one.give_back == deleter; });
}

void hold_small_buffers() {
  for (const ClassFunctions& one : kClassFunctions) one.pool->hold();
}

void let_go_of_small_buffers() {
  for (const ClassFunctions& one : kClassFunctions) one.pool->let_go();
}

#else

at::DataPtr allocate_small_buffer(uint64_t nbytes) {
  return c10::GetDefaultCPUAllocator()->allocate(nbytes);
}
bool frees_small_buffers(c10::DeleterFnPtr) { return false; }
void hold_small_buffers() {}
void let_go_of_small_buffers() {}

#endif

}  // namespace lazyeng::run
