// tests/cpp/test_block_pool.cpp: blocks that one thread takes and another gives back.
#include <cstdlib>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "csrc/engine/block_pool.h"
#include "tests/cpp/check.h"

namespace lazyeng::test {
namespace {

using engine::BlockPool;
using engine::BlockSource;

constexpr size_t kBytes = 48;
constexpr size_t kMostShared = 4;

std::atomic<int> blocks_in_use{0};

void* allocate(size_t bytes) {
  blocks_in_use.fetch_add(1);
  return std::malloc(bytes);
}
void free_block(void* block) noexcept {
  blocks_in_use.fetch_sub(1);
  std::free(block);
}
constexpr BlockSource kSource{&allocate, &free_block, kMostShared};

/// One for each test.
template <int test>
struct Blocks {
  static inline constinit BlockPool pool{kBytes, kSource};
  static inline thread_local constinit BlockPool::Local local;

  static void* take() { return pool.take(local); }
  static void give(void* block) { pool.give(local, block); }
  static std::vector<void*> take_many(size_t count) {
    std::vector<void*> taken;
    for (size_t i = 0; i < count; ++i) taken.push_back(take());
    return taken;
  }
  static void give_all(const std::vector<void*>& taken) {
    for (void* block : taken) give(block);
  }
};

void the_newest_is_taken_again() {
  using Of = Blocks<0>;
  void* const first = Of::take();
  Of::give(first);
  check(Of::take() == first, "what is warm comes first");
  Of::give(first);
}

void what_is_kept_is_bounded() {
  using Of = Blocks<1>;
  const int before = blocks_in_use;
  Of::give_all(Of::take_many(10'000));
  const int kept = blocks_in_use - before;
  check(kept <= static_cast<int>((kMostShared + 1) * BlockPool::kListSize),
        "kept " + std::to_string(kept));
  check(kept > static_cast<int>(kMostShared * BlockPool::kListSize) - 1, "lists are kept");
  std::vector<void*> again = Of::take_many(static_cast<size_t>(kept));
  same(blocks_in_use - before, kept, "taken from what is kept");
  Of::give_all(again);
}

void a_thread_leaves_nothing() {
  using Of = Blocks<2>;
  const int before = blocks_in_use;
  std::thread([] { Of::give_all(Of::take_many(10)); }).join();
  same(blocks_in_use - before, 0, "blocks after the thread");
}

void nobody_shares_a_block() {
  using Of = Blocks<3>;
  constexpr int kThreads = 4;
  const int rounds = scaled(300);
  std::atomic<bool> torn{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (int round = 0; round < rounds; ++round) {
        const std::vector<void*> taken = Of::take_many(50 + round % 150);
        for (void* block : taken) std::memset(block, t, kBytes);
        for (void* block : taken)
          for (size_t i = 0; i < kBytes; ++i)
            if (static_cast<char*>(block)[i] != t) torn = true;
        // Half of them by another thread.
        const size_t half = taken.size() / 2;
        std::thread([&] { Of::give_all({taken.begin(), taken.begin() + half}); }).join();
        Of::give_all({taken.begin() + half, taken.end()});
      }
    });
  for (std::thread& thread : threads) thread.join();
  check(!torn, "a block belongs to one thread");
}

}  // namespace
}  // namespace lazyeng::test

int main(int argc, char** argv) {
  using namespace lazyeng::test;
  return run_tests(argc, argv,
                   {
                       {"the newest is taken again", the_newest_is_taken_again},
                       {"what is kept is bounded", what_is_kept_is_bounded},
                       {"a thread leaves nothing", a_thread_leaves_nothing},
                       {"nobody shares a block", nobody_shares_a_block},
                   });
}
