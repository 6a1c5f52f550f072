// csrc/fuse/forms/forms.h: what the forms of csrc/fuse/op_table.h compute, as steps of a program.
//
// All of them throw Unfit for arguments that they do not know.
#pragma once

#include "csrc/fuse/extent.h"
#include "csrc/fuse/forms/registers.h"
#include "csrc/fuse/op_table.h"

namespace lazyeng::fuse {

/// The result of the member at hand, before it is cast to the dtype of the tensor that it goes to.
Operand lower_pointwise(Registers& r, const OpRule& rule);
/// A reduction that is there when all tiles are done.
void lower_fold(Registers& r, const OpRule& rule, const Extent& extent);
/// A reduction along rows.
void lower_rows(Registers& r, const OpRule& rule, const Extent& extent);

/// The exponent if it decides which steps a power is made of, else NaN.
double step_exponent(const c10::Scalar& exponent);
/// Whether the variance of every row that a program takes is defined with that correction.
bool leaves_freedom(const c10::Scalar& correction);

/// A loss before it is reduced.
Operand lower_loss(Registers& r, const OpRule& rule);
/// Whether the argument that says how a loss is reduced says by the mean.
bool takes_mean(const Registers& r);
/// The gradient of the first argument of a loss.
Operand lower_loss_backward(Registers& r, const OpRule& rule);

}  // namespace lazyeng::fuse
