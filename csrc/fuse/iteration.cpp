// csrc/fuse/iteration.cpp: the order of dims, broadcasting, merging.
#include "csrc/fuse/iteration.h"

#include <algorithm>

namespace lazyeng::fuse {
namespace {

/// Strides of an operand over the result's dims in that order; 0 where it is broadcast. `outer`:
/// its dims are the first ones of the result, not the last.
bool strides_over(const run::Geometry& result, const Dims& order, const run::Geometry& operand,
                  bool outer, Dims& strides) {
  const auto dims = static_cast<int64_t>(operand.sizes().size());
  const int64_t missing = static_cast<int64_t>(result.sizes().size()) - dims;
  if (missing < 0) return false;
  const int64_t first = outer ? 0 : missing;
  for (int64_t d = 0; d < dims; ++d)
    if (operand.sizes()[d] != 1 && operand.sizes()[d] != result.sizes()[first + d]) return false;
  for (int64_t d : order) {
    const int64_t own = d - first;
    const bool broadcast = own < 0 || own >= dims || operand.sizes()[own] == 1;
    strides.push_back(broadcast ? 0 : operand.strides()[own]);
  }
  return true;
}

bool overlaps(const Dims& shape, const Dims& strides) {
  for (size_t d = 0; d < shape.size(); ++d) {
    const int64_t below = d + 1 < shape.size() ? strides[d + 1] * shape[d + 1] : 1;
    if (strides[d] < below) return true;
  }
  return false;
}

/// Merges dim d + 1 into dim d where every operand crosses the two evenly.
void merge(Dims& shape, c10::SmallVector<Dims, 6>& all) {
  size_t last = 0;
  for (size_t d = 1; d < shape.size(); ++d) {
    const bool even = std::all_of(all.begin(), all.end(), [&](const Dims& strides) {
      return strides.empty() || strides[last] == strides[d] * shape[d];
    });
    if (!even) ++last;
    shape[last] = even ? shape[last] * shape[d] : shape[d];
    for (Dims& strides : all)
      if (!strides.empty()) strides[last] = strides[d];
  }
  shape.resize(shape.empty() ? 0 : last + 1);
  for (Dims& strides : all)
    if (!strides.empty()) strides.resize(shape.size());
}

bool is_linear(const Dims& shape, const Dims& strides) {
  int64_t expected = 1;
  for (size_t d = shape.size(); d-- > 0; expected *= shape[d])
    if (strides[d] != expected) return false;
  return true;
}

/// The common case, without any arithmetic: everything looks the same.
bool all_alike(const run::Geometry& result, c10::ArrayRef<const run::Geometry*> operands) {
  if (!result.dense()) return false;
  return std::all_of(operands.begin(), operands.end(), [&](const run::Geometry* operand) {
    return !operand || operand == &result || (operand->numel() == 1 && result.numel() != 1) ||
           (operand->sizes() == result.sizes() && operand->strides() == result.strides());
  });
}

}  // namespace

Dims memory_order(const run::Geometry& look) {
  Dims order;
  for (size_t d = 0; d < look.sizes().size(); ++d)
    if (look.sizes()[d] != 1) order.push_back(static_cast<int64_t>(d));
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return look.strides()[a] > look.strides()[b]; });
  return order;
}

int64_t constant_run(const Dims& shape, const Dims& strides) {
  size_t d = strides.size();
  int64_t run = 1;
  while (d > 0 && strides[d - 1] == 0) run *= shape[--d];
  const Dims outer_shape(shape.begin(), shape.begin() + d);
  const Dims outer(strides.begin(), strides.begin() + d);
  return run > 1 && d > 0 && is_linear(outer_shape, outer) ? run : 0;
}

int64_t repeated_run(const Dims& shape, const Dims& strides) {
  size_t d = strides.size();
  int64_t run = 1;
  while (d > 0 && strides[d - 1] == run) run *= shape[--d];
  const bool rest_repeats =
      std::all_of(strides.begin(), strides.begin() + d, [](int64_t stride) { return stride == 0; });
  return run > 1 && d > 0 && rest_repeats ? run : 0;
}

bool iterate(const run::Geometry& result, c10::ArrayRef<const run::Geometry*> operands,
             Iteration& iteration, uint32_t outer) {
  iteration.numel = result.numel();
  iteration.strides.assign(operands.size(), Dims());
  if (all_alike(result, operands)) {
    iteration.shape.assign(1, iteration.numel);
    return true;
  }
  const Dims order = memory_order(result);
  c10::SmallVector<Dims, 6> all(operands.size() + 1);
  for (int64_t d : order) iteration.shape.push_back(result.sizes()[d]);
  if (!strides_over(result, order, result, false, all[0])) return false;
  if (overlaps(iteration.shape, all[0])) return false;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (!operands[i] || (operands[i]->numel() == 1 && iteration.numel != 1)) continue;
    if (!strides_over(result, order, *operands[i], outer >> i & 1, all[i + 1])) return false;
  }
  merge(iteration.shape, all);
  if (iteration.shape.empty()) iteration.shape.push_back(iteration.numel);
  for (size_t i = 0; i < operands.size(); ++i)
    if (!all[i + 1].empty() && !is_linear(iteration.shape, all[i + 1]))
      iteration.strides[i] = std::move(all[i + 1]);
  return true;
}

bool register_dtype(c10::ScalarType dtype, Type& type) {
  switch (dtype) {
    case c10::kBool:
      type = Type::b8;
      return true;
    case c10::kByte:
      type = Type::u8;
      return true;
    case c10::kChar:
      type = Type::i8;
      return true;
    case c10::kShort:
      type = Type::i16;
      return true;
    case c10::kInt:
      type = Type::i32;
      return true;
    case c10::kLong:
      type = Type::i64;
      return true;
    case c10::kFloat:
      type = Type::f32;
      return true;
    case c10::kDouble:
      type = Type::f64;
      return true;
    case c10::kHalf:
      type = Type::f16;
      return true;
    case c10::kBFloat16:
      type = Type::bf16;
      return true;
    default:
      return false;
  }
}

}  // namespace lazyeng::fuse
