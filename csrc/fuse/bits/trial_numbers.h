// csrc/fuse/bits/trial_numbers.h: what trials compute with, and how they compare
// (csrc/fuse/bits/trials.h).
#pragma once

#include <ATen/Functions.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace lazyeng::fuse {

inline constexpr int64_t kTrialNumbers = 4096 + 37;

inline uint64_t next_random(uint64_t& state) {  // splitmix64
  uint64_t x = state += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// Of any size, but most of them near 1, with any digits.
template <class T>
T any_number(uint64_t choice, uint64_t digits) {
  using Limits = std::numeric_limits<T>;
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  constexpr int kDigits = Limits::digits - 1;
  constexpr uint64_t kOne = Limits::max_exponent - 1;  // the exponent of 1, as it is stored
  const auto near_one = [&](uint64_t powers) {
    return kOne - powers + (choice >> 8) % (2 * powers);
  };
  const uint64_t exponent = choice % 8 < 5    ? near_one(4)
                            : choice % 8 == 5 ? near_one(12)
                                              : (choice >> 8) % (2 * kOne + 1);
  const uint64_t sign = choice >> 63;
  const uint64_t bits =
      ((sign << (8 * sizeof(T) - 1 - kDigits) | exponent) << kDigits) | digits >> (64 - kDigits);
  return std::bit_cast<T>(static_cast<Bits>(bits));
}

/// Of 32 one has a meaning of its own.
template <class T>
at::Tensor trial_numbers(uint64_t seed) {
  using Limits = std::numeric_limits<T>;
  constexpr T kSpecial[] = {0,
                            -T(0),
                            1,
                            -1,
                            T(0.5),
                            3,
                            -3,
                            Limits::infinity(),
                            -Limits::infinity(),
                            Limits::quiet_NaN(),
                            Limits::denorm_min(),
                            -Limits::denorm_min(),
                            Limits::min(),
                            Limits::max(),
                            Limits::lowest()};
  at::Tensor made = at::empty({kTrialNumbers}, at::CppTypeToScalarType<T>::value);
  T* const data = made.mutable_data_ptr<T>();
  uint64_t state = seed;
  for (int64_t i = 0; i < kTrialNumbers; ++i) {
    const uint64_t choice = next_random(state), digits = next_random(state);
    data[i] =
        choice >> 32 & 31 ? any_number<T>(choice, digits) : kSpecial[digits % std::size(kSpecial)];
  }
  return made;
}

/// Of two tensors of rows.
template <class T>
bool same_bits(const at::Tensor& ours, const at::Tensor& theirs) {
  const int64_t columns = ours.size(1), a_step = ours.stride(1), b_step = theirs.stride(1);
  for (int64_t row = 0; row < ours.size(0); ++row) {
    const T* const a = ours.const_data_ptr<T>() + row * ours.stride(0);
    const T* const b = theirs.const_data_ptr<T>() + row * theirs.stride(0);
    if (a_step == 1 && b_step == 1 &&
        std::memcmp(a, b, static_cast<size_t>(columns) * sizeof(T)) == 0)
      continue;
    for (int64_t i = 0; i < columns; ++i) {
      const T &x = a[i * a_step], &y = b[i * b_step];
      if (std::memcmp(&x, &y, sizeof(T)) != 0 && !(x != x && y != y)) return false;
    }
  }
  return true;
}

}  // namespace lazyeng::fuse
