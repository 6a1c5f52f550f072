// csrc/fuse/key.h: what decides a program or kernels, as words to look it up by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lazyeng::fuse {

using Key = std::vector<uint64_t>;

struct HashKey {
  size_t operator()(const Key& key) const {
    uint64_t hash = key.size();
    for (uint64_t word : key) {
      hash = (hash ^ word) * 0x9E3779B97F4A7C15ull;
      hash ^= hash >> 29;
    }
    return hash;
  }
};

}  // namespace lazyeng::fuse
