// csrc/record/metadata/size_checks.h: what kernels refuse for the sizes of their arguments, where
// neither meta functions nor smaller tensors (csrc/record/metadata/smaller.h) tell.
#pragma once

#include "csrc/record/metadata/convolution_arguments.h"
#include "csrc/record/metadata/in_place_arguments.h"
#include "csrc/record/metadata/index_put_arguments.h"
#include "csrc/record/metadata/scattered_sources.h"

namespace lazyeng::record {

inline bool sizes_may_be_refused(const Call& call) {
  return convolution_may_be_refused(call) || index_put_may_be_refused(call) ||
         in_place_arguments_may_be_refused(call) || scattered_source_may_be_refused(call);
}

}  // namespace lazyeng::record
