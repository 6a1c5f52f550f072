// csrc/bindings/programs.h: a group's program as plain data for lazyeng/fuse.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>
#include <torch/csrc/utils/pybind.h>

#include "csrc/fuse/plan.h"

namespace lazyeng::bindings {

/// lazyeng.fuse.description.Program says what each field means.
py::dict describe(const fuse::GroupPlan& plan);

py::tuple dims(c10::ArrayRef<int64_t> sizes);
/// torch.float32, ...
py::object dtype_object(c10::ScalarType type);

}  // namespace lazyeng::bindings
