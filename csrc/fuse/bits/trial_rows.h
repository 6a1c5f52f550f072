// csrc/fuse/bits/trial_rows.h: the numbers that trials of reductions go over, and how a program
// loads them.
#pragma once

#include "csrc/fuse/bits/trial_numbers.h"
#include "csrc/fuse/forms/registers.h"

namespace lazyeng::fuse {

using Tensors = std::vector<at::Tensor>;

template <class T>
inline constexpr bool is_narrow_type =
    std::is_same_v<T, c10::Half> || std::is_same_v<T, c10::BFloat16>;
/// What registers hold of it.
template <class T>
using Wide = std::conditional_t<is_narrow_type<T>, float, T>;

template <class T>
inline const Type kMemory = memory_type(c10::CppTypeToScalarType<T>::value);
template <class T>
inline const Type kRegister = register_type(c10::CppTypeToScalarType<T>::value);

/// Of a narrow dtype a sum of such numbers is rounded to the same, whatever the order. So half of
/// these are large and cancel out: what is left of a row is as large as its errors.
template <class T>
void let_cancel(T* row, int64_t n, uint64_t& state) {
  constexpr double kSmall = 0x1p-8, kLarge = 0x1p12;
  for (int64_t i = 0; i < n; ++i) row[i] = static_cast<T>(static_cast<float>(row[i]) * kSmall);
  for (int64_t i = 0; i < n / 2; ++i) {
    const uint64_t choice = next_random(state);
    if (choice % 2) continue;
    const auto large = static_cast<T>(static_cast<double>(choice >> 3) * 0x1p-61 * kLarge);
    row[i] = large;
    row[n - 1 - i] = -large;
  }
}

/// Numbers of -4 to 4, about some other.
template <class T>
at::Tensor numbers_about(double middle, int64_t rows, int64_t row, uint64_t& state) {
  at::Tensor made = at::empty({rows, row}, at::CppTypeToScalarType<T>::value);
  T* const data = made.mutable_data_ptr<T>();
  for (int64_t i = 0; i < rows * row; ++i) {
    const auto bits = static_cast<int64_t>(next_random(state));
    data[i] = static_cast<T>(middle + static_cast<double>(bits) * 0x1p-61);
  }
  return made;
}

/// Numbers of about one size, whose sums round: of others only the largest would be seen.
template <class T>
at::Tensor like_numbers(int64_t rows, int64_t row, uint64_t seed) {
  uint64_t state = seed;
  at::Tensor made = numbers_about<T>(0, rows, row, state);
  if constexpr (is_narrow_type<T>)
    for (int64_t r = 0; r < rows; ++r) let_cancel(made.mutable_data_ptr<T>() + r * row, row, state);
  return made;
}

/// What a program loads of a tensor.
inline RegisterId load_wide(ProgramBuilder& builder, c10::ScalarType dtype,
                            Rate rate = Rate::element) {
  const Type memory = memory_type(dtype), type = register_type(dtype);
  const RegisterId loaded = builder.load({.type = memory, .strides = {}, .rate = rate});
  return memory == type ? loaded : builder.cast(loaded, type);
}

}  // namespace lazyeng::fuse
