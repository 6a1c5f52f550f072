// csrc/bindings/bindings.h: what the functions of lazyeng._C have in common.
//
// Every function that may wait lets go of the GIL in the recorder. C++ exceptions become Python
// ones through torch's own translation.
#pragma once

#include <Python.h>

#include "csrc/run/failures/python_error.h"

namespace lazyeng::bindings {

/// Runs `body`, turning C++ exceptions into Python ones.
template <class Body>
PyObject* guarded(Body body) {
  try {
    return body();
  } catch (...) {
    run::translate_to_python(std::current_exception());
    return nullptr;
  }
}

// One table a file; each ends with a row of nulls.
extern PyMethodDef tensor_methods[];
extern PyMethodDef memory_methods[];
extern PyMethodDef block_methods[];
extern PyMethodDef engine_methods[];
extern PyMethodDef setting_methods[];
extern PyMethodDef stack_methods[];
extern PyMethodDef trace_methods[];
extern PyMethodDef graph_methods[];
extern PyMethodDef fusion_methods[];
extern PyMethodDef kernel_methods[];
extern PyMethodDef timing_methods[];

}  // namespace lazyeng::bindings
