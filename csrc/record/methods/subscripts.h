// csrc/record/methods/subscripts.h: x[key] where the key says by numbers which elements are meant.
//
// torch's binding makes one op of each part of the key, x[i, :, a:b] is two. Here the sum of them
// is one view.
#pragma once

#include <Python.h>

#include "csrc/run/geometry.h"

namespace lazyeng::record {

/// From x to x[key], for a key of ints, slices, None and an ellipsis: one of these or a tuple.
/// False: another key, or one that torch refuses; the look is of no use then. GIL.
bool follow_subscript(run::GeometryData& look, PyObject* key);

}  // namespace lazyeng::record
