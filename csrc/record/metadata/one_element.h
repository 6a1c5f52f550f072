// csrc/record/metadata/one_element.h: ops of which one element tells what they return.
//
// A pointwise op of contiguous tensors of the same sizes returns more of these; a reduction that
// leaves no dims returns a number. Only the dtype is to be known, and a kernel tells it of tensors
// of one element, once for calls of a kind. So new sizes cost next to nothing: no run on large
// stand-ins, no meta function in Python.
#pragma once

#include <optional>

#include "csrc/record/call.h"

namespace lazyeng::record {

/// What the call returns, one for each result; nothing if the op is none of those, the arguments
/// are others, or the kernel refuses them.
std::optional<c10::SmallVector<run::GeometryRef, 2>> told_by_one_element(const Call& call);

}  // namespace lazyeng::record
