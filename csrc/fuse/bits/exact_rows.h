// csrc/fuse/bits/exact_rows.h: reductions along rows in the order of arithmetic of torch's own
// kernels, so that a program gives their bits. (Whether it does for this torch is found out by
// trial: csrc/fuse/bits/row_trials.cpp.)
#pragma once

#include <functional>

#include "csrc/fuse/op_table.h"
#include "csrc/fuse/tiles/tile_program.h"

namespace lazyeng::fuse {

/// Where the arguments of a form are.
struct RowArguments {
  static constexpr RegisterId kNone = UINT16_MAX;  ///< a tensor that is not given
  std::vector<RegisterId> tensors;                 ///< all of one type
  Type order_of = Type::f32;                       ///< that of the dtype in memory
  std::function<RegisterId(double)> number;        ///< a register that holds it, of that type
  RegisterId eps = kNone;                          ///< of layer_norm
  double divisor = 1;                              ///< of a variance
  int64_t row = 0;
  int64_t inner = 1;  ///< Extent::inner
};

bool has_exact_rows(Form form, c10::ScalarType dtype);
/// Whether rows of that length take less time in a program than with torch's kernel, measured.
/// (Others are log_softmax', 1.1 of it, its and softmax' backward's, 1.0 to 1.2, layer_norm's of
/// narrow dtypes, 1.0 to 1.3, and logsumexp's, 1.1 to 2.)
bool rows_pay(Form form, c10::ScalarType dtype, int64_t row);
/// Whether a program computes the node like that. Where other bits are allowed, only what is as
/// fast in torch's order (a variance takes ten times as long, softmax a slower exp), and rows that
/// are short.
bool takes_exact_rows(const OpRule& rule, const run::Node& node, c10::ScalarType dtype,
                      int64_t row);
/// Whether nothing of a row is left over of whole vectors, of any instruction set, or there is
/// none.
constexpr bool is_whole(int64_t row) { return row % 16 == 0 || row < 8; }
/// The same of all elements, which are folded to one.
bool has_exact_sum(Form form, c10::ScalarType dtype);

/// The results: of one element a row if is_row_result says so (csrc/fuse/extent.h). Those of
/// narrow dtypes are to be rounded.
std::vector<RegisterId> exact_rows(ProgramBuilder& builder, const OpRule& rule,
                                   const RowArguments& args);

/// That of a variance.
double correction_of(const run::Node& node);
/// Of a variance with such a correction: what the squares are divided by.
double variance_divisor(int64_t row, double correction);

/// Tries both (csrc/fuse/bits/trials.h), of floats: the sums of all elements as well, if the form
/// has any.
bool rows_give_torchs_bits(Form form, c10::ScalarType dtype);
/// Only those (csrc/fuse/bits/sum_trials.cpp).
bool sums_give_torchs_bits(Form form, c10::ScalarType dtype);

}  // namespace lazyeng::fuse
