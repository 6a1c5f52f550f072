// csrc/fuse/tiles/picked_sum.cpp: in the order of torch's kernel.
#include "csrc/fuse/tiles/picked_sum.h"

#include <array>
#include <cstring>
#include <numeric>

namespace lazyeng::fuse {
namespace {

/// A sum in levels, as torch's: each passes on what it has to the next after kStep times as many
/// rows as the one below. (From 2 ** 40 rows on torch's steps are longer.)
template <class T>
class LevelledSum {
 public:
  void add(T value) { levels_[0] += value; }

  /// After the row of that number, which was added.
  void carry(int64_t row) {
    for (size_t level = 0; level + 1 < levels_.size() && row % kStep == 0; ++level, row /= kStep) {
      levels_[level + 1] += levels_[level];
      levels_[level] = 0;
    }
  }

  T total() const { return std::accumulate(levels_.begin(), levels_.end(), T(0)); }

 private:
  static constexpr int64_t kStep = 16;
  std::array<T, 8> levels_{};
};

template <class T>
void write_number(const std::optional<uint16_t>& tensor, const std::vector<char*>& tensors,
                  T value) {
  if (tensor) std::memcpy(tensors[*tensor], &value, sizeof value);
}

std::unique_ptr<char[]> room_for(Type type, int64_t rows) {
  return std::unique_ptr<char[]>(new char[static_cast<size_t>(rows) * size_of(type)]);
}

}  // namespace

PickedRows::PickedRows(Type type, int64_t rows, bool weighted)
    : type_(type), picked_(room_for(type, rows)) {
  if (weighted) weights_ = room_for(type, rows);
}

bool PickedRows::pick(const RowsToPick& from, int64_t rows, int64_t ignored) {
  return type_ == Type::f64 ? pick_of<double>(from, rows, ignored)
                            : pick_of<float>(from, rows, ignored);
}

template <class T>
bool PickedRows::pick_of(const RowsToPick& from, int64_t rows, int64_t ignored) {
  const T* elements = reinterpret_cast<const T*>(from.elements);
  const T* const weights = reinterpret_cast<const T*>(from.weights);
  T* const picked = reinterpret_cast<T*>(picked_.get()) + rows_;
  T* const weight = reinterpret_cast<T*>(weights_.get()) + (weights ? rows_ : 0);
  for (int64_t r = 0; r < rows; ++r, elements += from.row) {
    const int64_t place = from.targets[r];
    if (place == ignored) continue;
    if (place < 0 || place >= from.row) return false;
    picked[r] = elements[place];
    if (weights) weight[r] = weights[place * from.weight_step];
  }
  rows_ += rows;
  return true;
}

template <class T>
void PickedRows::write(const PickedSum& sum, const std::vector<PickedRows*>& threads,
                       const std::vector<char*>& tensors) {
  const auto* targets = reinterpret_cast<const int64_t*>(tensors[sum.targets]);
  LevelledSum<T> loss, weight;
  int64_t row = 0, counted = 0;
  for (const PickedRows* rows : threads) {
    const T* const picked = reinterpret_cast<const T*>(rows->picked_.get());
    const T* const weights = reinterpret_cast<const T*>(rows->weights_.get());
    for (int64_t i = 0; i < rows->rows_; ++i, ++row) {
      if (targets[row] == sum.ignored) continue;
      ++counted;
      loss.add(weights ? -(picked[i] * weights[i]) : -picked[i]);
      loss.carry(row);
      if (!weights) continue;
      weight.add(weights[i]);
      weight.carry(row);
    }
  }
  const T all = sum.weights ? weight.total() : static_cast<T>(counted);
  write_number(sum.loss, tensors, sum.mean ? loss.total() / all : loss.total());
  write_number(sum.total_weight, tensors, all);
}

void PickedRows::write_sum(const PickedSum& sum, const std::vector<PickedRows*>& threads,
                           const std::vector<char*>& tensors) {
  if (threads[0]->type_ == Type::f64)
    write<double>(sum, threads, tensors);
  else
    write<float>(sum, threads, tensors);
}

}  // namespace lazyeng::fuse
