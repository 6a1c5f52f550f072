// csrc/fuse/moves.cpp: runs along the innermost dim; splats.
#include "csrc/fuse/moves.h"

#include <algorithm>
#include <cstring>

namespace lazyeng::fuse {
namespace {

/// Walks `n` elements of a strided tensor from element `first` of the iteration on, in runs along
/// the innermost dim: run(memory, stride in bytes, elements).
template <class Run>
void for_runs(const Program& program, const TensorAccess& tensor, char* base, int64_t first,
              int64_t n, const Run& run) {
  const size_t item = size_of(tensor.type);
  const int inner = static_cast<int>(program.shape.size()) - 1;
  Dims at(program.shape.size());
  int64_t offset = 0;
  for (int d = inner; d >= 0; --d) {
    at[d] = first % program.shape[d];
    first /= program.shape[d];
    offset += at[d] * tensor.strides[d];
  }
  while (n > 0) {
    const int64_t length = std::min(n, program.shape[inner] - at[inner]);
    run(base + offset * static_cast<int64_t>(item),
        tensor.strides[inner] * static_cast<int64_t>(item), length);
    n -= length;
    at[inner] += length;
    offset += length * tensor.strides[inner];
    for (int d = inner; d > 0 && at[d] == program.shape[d]; --d) {
      offset += tensor.strides[d - 1] - at[d] * tensor.strides[d];
      at[d] = 0;
      ++at[d - 1];
    }
  }
}

template <class T>
void copy_strided(char* to, int64_t to_stride, const char* from, int64_t from_stride, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    std::memcpy(to + i * to_stride, from + i * from_stride, sizeof(T));
}

void copy_run(size_t item, char* to, int64_t to_stride, const char* from, int64_t from_stride,
              int64_t n) {
  const auto width = static_cast<int64_t>(item);
  if (to_stride == width && from_stride == width)
    std::memcpy(to, from, static_cast<size_t>(n * width));
  else if (item == 1)
    copy_strided<uint8_t>(to, to_stride, from, from_stride, n);
  else if (item == 2)
    copy_strided<uint16_t>(to, to_stride, from, from_stride, n);
  else if (item == 4)
    copy_strided<uint32_t>(to, to_stride, from, from_stride, n);
  else
    copy_strided<uint64_t>(to, to_stride, from, from_stride, n);
}

template <class T>
void repeat(char* splat) {
  T value;
  std::memcpy(&value, splat, sizeof value);
  for (int64_t i = 1; i < kLanes; ++i) std::memcpy(splat + i * sizeof value, &value, sizeof value);
}

}  // namespace

void fill_splat(char* splat, size_t item) {
  if (item == 1)
    repeat<uint8_t>(splat);
  else if (item == 2)
    repeat<uint16_t>(splat);
  else if (item == 4)
    repeat<uint32_t>(splat);
  else
    repeat<uint64_t>(splat);
}

void gather(const Program& program, const TensorAccess& tensor, char* memory, char* to,
            int64_t first, int64_t n) {
  const auto item = static_cast<int64_t>(size_of(tensor.type));
  if (tensor.rate == Rate::row) {
    memory += first / program.row * item;
    for (int64_t row = 0; row < n / program.row; ++row, to += kLanes * item, memory += item) {
      std::memcpy(to, memory, static_cast<size_t>(item));
      fill_splat(to, static_cast<size_t>(item));
    }
    return;
  }
  for_runs(program, tensor, memory, first, n,
           [&](const char* from, int64_t stride, int64_t length) {
             copy_run(static_cast<size_t>(item), to, item, from, stride, length);
             to += length * item;
           });
}

void scatter(const Program& program, const TensorAccess& tensor, char* memory, const char* from,
             int64_t first, int64_t n) {
  const auto item = static_cast<int64_t>(size_of(tensor.type));
  if (tensor.rate == Rate::row)
    return copy_run(static_cast<size_t>(item), memory + first / program.row * item, item, from,
                    kLanes * item, n / program.row);
  for_runs(program, tensor, memory, first, n, [&](char* to, int64_t stride, int64_t length) {
    copy_run(static_cast<size_t>(item), to, stride, from, item, length);
    from += length * item;
  });
}

}  // namespace lazyeng::fuse
