// csrc/fuse/key.h: what decides a program or kernels, as words to look it up by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "csrc/run/hash_words.h"

namespace lazyeng::fuse {

using Key = std::vector<uint64_t>;

struct HashKey {
  size_t operator()(const Key& key) const { return run::hash_words(key.data(), key.size()); }
};

}  // namespace lazyeng::fuse
