// csrc/stacks/stub_frame.cpp: frames for synthetic tracebacks.
#include "csrc/stacks/stub_frame.h"

#include <frameobject.h>

namespace lazyeng::stacks {

PyObject* new_stub_frame(PyCodeObject* code, PyObject* globals) {
  if (!PyCode_Check(code) || !PyDict_Check(globals)) {
    PyErr_SetString(PyExc_TypeError, "[new_stub_frame] expected a code object and a dict");
    return nullptr;
  }
  return reinterpret_cast<PyObject*>(PyFrame_New(PyThreadState_Get(), code, globals, nullptr));
}

}  // namespace lazyeng::stacks
