// csrc/record/metadata/scattered_sources.h: what kernels of select_scatter and its like refuse, and
// their meta functions take.
#pragma once

#include "csrc/record/call.h"

namespace lazyeng::record {

/// True for a call of an op that copies a source into a view of another tensor, where there is no
/// such view, or the source has other sizes: it runs at the call then.
bool scattered_source_may_be_refused(const Call& call);

}  // namespace lazyeng::record
