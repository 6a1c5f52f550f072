// csrc/fuse/extent.cpp: reduced dims, and whether they are the innermost ones in memory.
#include "csrc/fuse/extent.h"

#include "csrc/fuse/iteration.h"

namespace lazyeng::fuse {
namespace {

using DimSet = std::vector<bool>;

DimSet all_dims(size_t n) { return DimSet(n, true); }

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
    case Form::layer_norm: {
      DimSet set(n);
      for (size_t d = n - node.args[1].toIntVector().size(); d < n; ++d) set[d] = true;
      return set;
    }
    default:
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

/// Whether a result of one element a row has them in the order of the rows, without gaps.
bool linear_over_rows(const run::Geometry& result, const run::Geometry& elements,
                      const DimSet& reduced) {
  const bool keeps_dims = result.sizes().size() == elements.sizes().size();
  std::vector<size_t> dim_of(reduced.size());
  for (size_t d = 0, kept = 0; d < reduced.size(); ++d)
    dim_of[d] = keeps_dims ? d : reduced[d] ? 0 : kept++;
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

Extent rows_of(const OpRule& rule, const run::Node& node, const run::Geometry& elements) {
  if (elements.numel() == 1) return {};
  const DimSet reduced = reduced_dims(rule, node, elements.sizes().size());
  const int64_t row = row_length(elements, reduced);
  if (row < kShortestRow || row > kLongestRow || row == elements.numel()) return {};
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    const run::Geometry& result = node.outputs[i]->geometry();
    if (is_row_result(rule.form, i) ? !linear_over_rows(result, elements, reduced)
                                    : result.sizes() != elements.sizes())
      return {};
  }
  return {&elements, false, row};
}

const run::Geometry* tensor_look(const run::Node& node, size_t index) {
  const run::ValueRef& value = node.tensors[index].value;
  return value ? &value->geometry() : nullptr;
}

/// To one element, or (without a reduction) none at all: never along dims.
Extent loss_extent(const run::Node& node, const run::Geometry& result) {
  const run::Geometry* self = tensor_look(node, 0);
  const run::Geometry* target = tensor_look(node, 1);
  if (!self || !target) return {};
  if (node.args[2].toInt() == 0) return {&result};
  if (self->sizes() != target->sizes() || self->numel() == 1) return {};
  return {self, true};
}

}  // namespace

Extent extent_of(const OpRule& rule, const run::Node& node) {
  if (node.info.writes) return {tensor_look(node, 0)};
  const run::Geometry& result = node.outputs[0]->geometry();
  if (!is_reduction(rule.form)) return {&result};
  if (rule.form == Form::mse_loss) return loss_extent(node, result);
  if (is_normalization(rule.form)) return rows_of(rule, node, result);
  const run::Geometry* input = tensor_look(node, 0);
  if (!input || input->numel() == 1) return {};
  const bool plain_fold = rule.form <= Form::minimum;
  if (result.numel() == 1) return plain_fold ? Extent{input, true} : Extent{};
  return rows_of(rule, node, *input);
}

}  // namespace lazyeng::fuse
