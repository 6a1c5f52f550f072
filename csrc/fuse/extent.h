// csrc/fuse/extent.h: what a node goes over, and along which of its dims it reduces.
#pragma once

#include "csrc/fuse/op_table.h"
#include "csrc/fuse/tiles/tile_program.h"

namespace lazyeng::fuse {

/// Rows that a group may have. Shorter ones pay where some are folded side by side
/// (csrc/fuse/tiles/row_kernels.inc). Of longer ones several registers would not stay in the cache
/// of the third level, nor a block in the registers of a device's core.
inline constexpr int64_t kShortestRow = kLanes, kShortestExactRow = 2;
inline constexpr int64_t kLongestRow = 1 << 18, kLongestRowOfDevice = 1 << 15;
/// Elements of a whole vector of any instruction set.
constexpr int64_t whole_layer(c10::ScalarType dtype) { return dtype == c10::kFloat ? 16 : 8; }
/// Of what is folded into several elements, but not along rows: fewer side by side would be handled
/// one by one; more totals, of which each thread has its own, would take longer than the elements.
inline constexpr int64_t kLeastSideBySide = 16, kMostTotals = 1 << 16, kLeastFolded = 8;

struct Extent {
  const run::Geometry* elements = nullptr;  ///< null: no program can do it
  bool folds = false;  ///< it reduces them, and the result is there when all tiles are done
  Places places = {};  ///< of what it folds them to
  int64_t row = 0;     ///< otherwise: how many are reduced together; 0: a pointwise op
  int64_t inner = 1;   ///< of a row, elements that are not reduced together: these are a layer, and
                       ///< layers are (csrc/fuse/tiles/across_kernels.inc)
  uint32_t outer =
      0;  ///< as iterate(): tensor arguments of one element a row, without the last dim
};

/// `node.outputs`, or what it writes, is known to be there.
Extent extent_of(const OpRule& rule, const run::Node& node);

/// Whether the op may leave out results.
constexpr bool has_mask(Form form) { return form == Form::layer_norm_backward; }
/// Of a node that reduces along rows: whether the result is folded over all of them.
constexpr bool is_folded_result(Form form, size_t result) {
  return form == Form::nll_loss || (has_mask(form) && result > 0);
}
/// Whether it has one element a row.
constexpr bool is_row_result(Form form, size_t result) {
  return !is_folded_result(form, result) && (!is_normalization(form) || result > 0);
}

/// Whether kernels of devices can do it (lazyeng/fuse): not what is folded into several elements.
constexpr bool has_kernels(Form form, const Extent& extent) {
  return extent.places.totals == 1 && extent.inner == 1 && !has_mask(form) &&
         form != Form::nll_loss && form != Form::nll_loss_backward;
}

}  // namespace lazyeng::fuse
