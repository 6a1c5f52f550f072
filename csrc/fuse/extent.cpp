// csrc/fuse/extent.cpp: reduced dims, and whether they are the innermost ones in memory.
#include "csrc/fuse/extent.h"

#include <ATen/core/Reduction.h>

#include <algorithm>

#include "csrc/fuse/bits/exact_rows.h"
#include "csrc/fuse/iteration.h"

namespace lazyeng::fuse {
namespace {

using DimSet = std::vector<bool>;

DimSet all_dims(size_t n) { return DimSet(n, true); }

DimSet last_dims(size_t count, size_t n) {
  DimSet set(n);
  for (size_t d = n - count; d < n; ++d) set[d] = true;
  return set;
}

/// Of an argument that names a dim, or a list of dims, of which none stands for all.
DimSet named_dims(const c10::IValue& named, size_t n) {
  std::vector<int64_t> dims;
  if (named.isInt()) dims.push_back(named.toInt());
  if (named.isIntList()) dims = named.toIntVector();
  if (dims.empty()) return all_dims(n);
  DimSet set(n);
  for (int64_t dim : dims) set.at(static_cast<size_t>(dim < 0 ? dim + int64_t(n) : dim)) = true;
  return set;
}

DimSet reduced_dims(const OpRule& rule, const run::Node& node, size_t n) {
  switch (rule.form) {
    case Form::softmax_backward:
    case Form::log_softmax_backward:
      return named_dims(node.args[2], n);
    case Form::layer_norm:
      return last_dims(node.args[1].toIntVector().size(), n);
    case Form::layer_norm_backward:
      return last_dims(node.args[2].toIntVector().size(), n);
    default:  // (what has no argument for dims has a result without dims)
      if (node.outputs[0]->geometry().sizes().empty()) return all_dims(n);
      return node.args.size() > 1 ? named_dims(node.args[1], n) : all_dims(n);
  }
}

/// Elements that are reduced together; 0 if they do not lie side by side in the order of memory.
int64_t row_length(const run::Geometry& elements, const DimSet& reduced) {
  const Dims order = memory_order(elements);
  int64_t row = 1;
  size_t d = order.size();
  while (d > 0 && reduced[order[d - 1]]) row *= elements.sizes()[order[--d]];
  while (d > 0)
    if (reduced[order[--d]]) return 0;
  return row;
}

/// Which of the result's dims is each of those that are not reduced.
std::vector<size_t> result_dims(const run::Geometry& result, const DimSet& reduced) {
  const bool keeps_dims = result.sizes().size() == reduced.size();
  std::vector<size_t> dim_of(reduced.size());
  for (size_t d = 0, kept = 0; d < reduced.size(); ++d)
    dim_of[d] = keeps_dims ? d : reduced[d] ? 0 : kept++;
  return dim_of;
}

/// Whether a result of one element a row has them in the order of the rows, without gaps.
bool linear_over_rows(const run::Geometry& result, const run::Geometry& elements,
                      const DimSet& reduced) {
  const std::vector<size_t> dim_of = result_dims(result, reduced);
  const Dims order = memory_order(elements);
  int64_t expected = 1;
  for (size_t i = order.size(); i-- > 0;) {
    const auto d = static_cast<size_t>(order[i]);
    if (reduced[d]) continue;
    if (result.strides()[dim_of[d]] != expected) return false;
    expected *= elements.sizes()[d];
  }
  return result.numel() == expected;
}

/// (A few of the longest rows leave cores idle: unfused, all cores share each row.)
int64_t longest_row(const run::Node& node, const run::Geometry& elements) {
  if (!node.device.is_cpu()) return kLongestRowOfDevice;
  constexpr int64_t kMany = 8;
  return elements.numel() >= kMany * kLongestRow ? kLongestRow : kLongestRow / 2;
}

/// Whether a program may have such rows.
bool fits(int64_t row, const OpRule& rule, const run::Node& node, const run::Geometry& elements) {
  if (row < kShortestExactRow || row > longest_row(node, elements) || row == elements.numel())
    return false;
  return row >= kShortestRow || (rows_pay(rule.form, elements.dtype(), row) &&
                                 takes_exact_rows(rule, node, elements.dtype(), row));
}

Extent rows_of(const OpRule& rule, const run::Node& node, const run::Geometry& elements) {
  if (elements.numel() == 1) return {};
  const DimSet reduced = reduced_dims(rule, node, elements.sizes().size());
  const int64_t row = row_length(elements, reduced);
  if (!fits(row, rule, node, elements)) return {};
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    if (!node.outputs[i] || is_folded_result(rule.form, i)) continue;
    const run::Geometry& result = node.outputs[i]->geometry();
    if (is_row_result(rule.form, i) ? !linear_over_rows(result, elements, reduced)
                                    : result.sizes() != elements.sizes())
      return {};
  }
  return {&elements, false, {}, row};
}

const run::Geometry* tensor_look(const run::Node& node, size_t index) {
  const run::ValueRef& value = node.tensors[index].value;
  return value ? &value->geometry() : nullptr;
}

/// Of softmax along a dim that is not the innermost one: whole vectors side by side, in the order
/// of memory that torch has its kernel for.
Extent slabs_of(const run::Node& node, const run::Geometry& elements) {
  if (!node.device.is_cpu() || node.tensors.empty() || !tensor_look(node, 0)) return {};
  const c10::ScalarType dtype = elements.dtype();
  if ((dtype != c10::kFloat && dtype != c10::kDouble) || tensor_look(node, 0)->dtype() != dtype)
    return {};
  const auto n = static_cast<int64_t>(elements.sizes().size());
  if (n == 0) return {};
  const int64_t named = node.args[1].toInt(), dim = named < 0 ? named + n : named;
  int64_t inner = 1;
  for (int64_t d = n - 1; d >= 0; --d) {
    if (elements.sizes()[d] != 1 && elements.strides()[d] != inner) return {};
    if (d == dim) break;
    inner *= elements.sizes()[d];
  }
  const int64_t row = inner * elements.sizes()[dim];
  if (inner == 1 || inner % whole_layer(dtype) != 0 || row == inner ||
      row > longest_row(node, elements) || row == elements.numel() || !elements.dense())
    return {};
  return {&elements, false, {}, row, inner};
}

/// The place in the memory of the result that each element goes to, in the order of memory, with
/// neighbouring dims merged.
Places places_of(const run::Geometry& result, const run::Geometry& elements,
                 const DimSet& reduced) {
  const std::vector<size_t> dim_of = result_dims(result, reduced);
  Places places;
  for (int64_t d : memory_order(elements)) {
    const int64_t size = elements.sizes()[d];
    const int64_t stride = reduced[d] ? 0 : result.strides()[dim_of[d]];
    if (stride) places.totals *= size;
    if (!places.shape.empty() && places.strides.back() == stride * size) {
      places.shape.back() *= size;
      places.strides.back() = stride;
    } else {
      places.shape.push_back(size);
      places.strides.push_back(stride);
    }
  }
  return places;
}

bool pays(const Places& places, const run::Geometry& result, const run::Geometry& elements) {
  return result.dense() && places.totals <= kMostTotals &&
         elements.numel() >= places.totals * kLeastFolded &&
         places.shape.back() >= kLeastSideBySide && places.strides.back() <= 1;
}

/// Of a plain fold that is not along rows.
Extent fold_of(const OpRule& rule, const run::Node& node, const run::Geometry& elements) {
  const run::Geometry& result = node.outputs[0]->geometry();
  const DimSet reduced = reduced_dims(rule, node, elements.sizes().size());
  Extent extent{&elements, true, places_of(result, elements, reduced)};
  if (extent.places.totals != result.numel()) return {};  // (no dims, taken for none by some ops)
  return extent.places.totals == 1 || pays(extent.places, result, elements) ? extent : Extent();
}

/// Along rows, and over all of them.
Extent backward_of(const OpRule& rule, const run::Node& node, const run::Geometry& elements) {
  Extent extent = rows_of(rule, node, elements);
  if (!extent.elements) return {};
  DimSet outer = reduced_dims(rule, node, elements.sizes().size());
  outer.flip();
  for (size_t i = 1; i < node.outputs.size(); ++i) {
    if (!node.outputs[i]) continue;
    const run::Geometry& result = node.outputs[i]->geometry();
    extent.places = places_of(result, elements, outer);
    if (!pays(extent.places, result, elements)) return {};
  }
  return extent;
}

bool lies_as_rows_of(const run::Geometry& elements, const run::Geometry* look) {
  return look && look->sizes().size() == 1 && look->numel() == elements.sizes()[0] && look->dense();
}

/// Each row has an element that its target names, the tensor of that index. Rows of any length:
/// nothing is folded.
Extent picked_rows(const run::Node& node, const run::Geometry& elements, size_t target) {
  if (elements.sizes().size() != 2 || !elements.dense() || elements.strides()[1] != 1) return {};
  const int64_t rows = elements.sizes()[0], row = elements.sizes()[1];
  if (rows < 2 || row < kShortestExactRow || row > longest_row(node, elements)) return {};
  const run::Geometry* look = tensor_look(node, target);
  if (!lies_as_rows_of(elements, look) || look->dtype() != c10::kLong) return {};
  Extent extent{&elements, false, {}, row};
  extent.outer = 1u << target;
  return extent;
}

/// Reduced to one element, in a dtype that sums are not rounded in.
Extent nll_loss_extent(const run::Node& node) {
  const run::Geometry* self = tensor_look(node, 0);
  if (!self || node.args[3].toInt() == at::Reduction::None) return {};
  if (self->dtype() != c10::kFloat && self->dtype() != c10::kDouble) return {};
  return picked_rows(node, *self, 1);
}

/// The gradient is a number, or one for each row.
Extent nll_loss_backward_extent(const run::Node& node, const run::Geometry& result) {
  Extent extent = picked_rows(node, result, 2);
  const run::Geometry* grad = tensor_look(node, 0);
  if (grad && grad->numel() != 1 && extent.elements && !lies_as_rows_of(result, grad)) return {};
  extent.outer |= 1u;
  return extent;
}

/// There are sums and products of numbers, which need more than one bit.
bool has_fold(Form form, c10::ScalarType result) {
  if (form == Form::sum) return result != c10::kBool;
  return form != Form::product || c10::isIntegralType(result, /*includeBool=*/false);
}

/// To one element, never along dims.
Extent loss_extent(const run::Node& node) {
  const run::Geometry* self = tensor_look(node, 0);
  const run::Geometry* target = tensor_look(node, 1);
  if (!self || !target) return {};
  if (self->sizes() != target->sizes() || self->numel() == 1) return {};
  return {self, true};
}

/// Whether what a program makes element by element it can make of all results.
bool lie_alike(c10::ArrayRef<run::ValueRef> results) {
  return std::ranges::all_of(results, [&](const run::ValueRef& result) {
    return result->geometry().sizes() == results[0]->geometry().sizes() &&
           result->geometry().strides() == results[0]->geometry().strides();
  });
}

}  // namespace

Extent extent_of(const OpRule& rule, const run::Node& node) {
  if (node.info.writes) return {tensor_look(node, 0)};
  if (rule.form == Form::layer_norm_backward) {
    const run::Geometry* elements =
        node.outputs[0] ? &node.outputs[0]->geometry() : tensor_look(node, 1);
    return elements ? backward_of(rule, node, *elements) : Extent();
  }
  const run::Geometry& result = node.outputs[0]->geometry();
  if (!is_reduction(rule.form) || is_unreduced(rule.form, node))
    return lie_alike(node.outputs) ? Extent{&result} : Extent();
  if (is_loss(rule.form)) return loss_extent(node);
  if (rule.form == Form::nll_loss) return nll_loss_extent(node);
  if (rule.form == Form::nll_loss_backward) return nll_loss_backward_extent(node, result);
  if (is_normalization(rule.form)) {
    const Extent rows = rows_of(rule, node, result);
    const bool other_dims = rule.form == Form::softmax || rule.form == Form::log_softmax;
    return rows.elements || !other_dims ? rows : slabs_of(node, result);
  }
  const run::Geometry* input = tensor_look(node, 0);
  if (!input || input->numel() == 1) return {};
  if (!is_plain_fold(rule.form))
    return result.numel() == 1 ? Extent() : rows_of(rule, node, *input);
  if (!has_fold(rule.form, result.dtype())) return {};
  const Extent rows = result.numel() == 1 ? Extent() : rows_of(rule, node, *input);
  return rows.elements ? rows : fold_of(rule, node, *input);
}

}  // namespace lazyeng::fuse
