// csrc/fuse/tiles/moves.cpp: runs along the innermost dim; splats.
#include "csrc/fuse/tiles/moves.h"

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
void repeat(char* splat, int64_t lanes) {
  T value;
  std::memcpy(&value, splat, sizeof value);
  for (int64_t i = 1; i < lanes; ++i) std::memcpy(splat + i * sizeof value, &value, sizeof value);
}

/// Rows at whose beginning kLanes elements are in the tile: what is too much the next row replaces.
int64_t rows_to_overwrite(int64_t row, int64_t rows) {
  return std::max<int64_t>(rows - (kLanes + row - 1) / row, 0);
}

template <class T>
void spread_row(const T* from, int64_t lanes, T* to, int64_t row, int64_t rows) {
  const int64_t fast = rows_to_overwrite(row, rows);
  for (int64_t r = 0; r < fast; ++r, from += lanes, to += row) {
    const T value = *from;
    for (int64_t begin = 0; begin < row; begin += kLanes)
      for (int64_t i = begin; i < begin + kLanes; ++i) to[i] = value;
  }
  for (int64_t r = fast; r < rows; ++r, from += lanes, to += row) std::fill_n(to, row, *from);
}

template <class T>
void spread_column(const T* from, T* to, int64_t row, int64_t rows) {
  T column[kLongEnoughRow + kLanes] = {};
  std::copy_n(from, row, column);
  const int64_t fast = rows_to_overwrite(row, rows);
  for (int64_t r = 0; r < fast; ++r, to += row)
    for (int64_t begin = 0; begin < row; begin += kLanes)
      std::memcpy(to + begin, column + begin, kLanes * sizeof(T));
  for (int64_t r = fast; r < rows; ++r, to += row) std::copy_n(column, row, to);
}

/// Calls f with an element of as many bytes.
template <class F>
void for_item(size_t item, const F& f) {
  if (item == 1)
    f(uint8_t());
  else if (item == 2)
    f(uint16_t());
  else if (item == 4)
    f(uint32_t());
  else
    f(uint64_t());
}

}  // namespace

void fill_splat(char* splat, size_t item, int64_t lanes) {
  for_item(item, [=]<class T>(T) { repeat<T>(splat, lanes); });
}

void spread_rows(const char* from, int64_t lanes, char* to, int64_t row, int64_t rows,
                 size_t item) {
  for_item(item, [=]<class T>(T) {
    spread_row(reinterpret_cast<const T*>(from), lanes, reinterpret_cast<T*>(to), row, rows);
  });
}

void spread_columns(const char* from, char* to, int64_t row, int64_t rows, size_t item) {
  for_item(item, [=]<class T>(T) {
    spread_column(reinterpret_cast<const T*>(from), reinterpret_cast<T*>(to), row, rows);
  });
}

void gather(const Program& program, const TensorAccess& tensor, char* memory, char* to,
            int64_t first, int64_t n) {
  const auto item = static_cast<int64_t>(size_of(tensor.type));
  if (tensor.rate == Rate::row) {
    memory += first / program.row * item;
    for (int64_t row = 0; row < n / program.row; ++row, memory += item) {
      std::memcpy(to, memory, static_cast<size_t>(item));
      fill_splat(to, static_cast<size_t>(item), program.lanes());
      to += program.lanes() * item;
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
                    program.lanes() * item, n / program.row);
  for_runs(program, tensor, memory, first, n, [&](char* to, int64_t stride, int64_t length) {
    copy_run(static_cast<size_t>(item), to, stride, from, item, length);
    from += length * item;
  });
}

}  // namespace lazyeng::fuse
