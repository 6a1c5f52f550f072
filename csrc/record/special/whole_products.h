// csrc/record/special/whole_products.h: linear and matmul as one op each, where no gradient is
// asked for.
#pragma once

namespace lazyeng::record {

/// Registers kernels for linear and matmul, which torch writes in terms of views and products.
/// Once per process.
void register_whole_products();

}  // namespace lazyeng::record
