// csrc/run/hash_words.h: the hash of keys made of words (plans, programs, geometries).
#pragma once

#include <cstddef>
#include <cstdint>

namespace lazyeng::run {

inline uint64_t mix_word(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 29);
}

inline uint64_t hash_words(const uint64_t* words, size_t count) {
  uint64_t hash = count;
  for (size_t i = 0; i < count; ++i) hash = mix_word(hash, words[i]);
  return hash;
}

}  // namespace lazyeng::run
