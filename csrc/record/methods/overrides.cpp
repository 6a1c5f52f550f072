// csrc/record/methods/overrides.cpp: torch's questions whether a tensor overrides its functions.
//
// torch's argument parser asks each argument of a subclass for "__torch_function__", and torch asks
// each new object for "__torch_dispatch__", by a C string: an interned string is looked up, then
// the name in each class of the MRO. LazyTensor overrides neither. torch asks through tp_getattr
// first, a slot that Python itself does not look at where tp_getattro is set.
#include <cstring>

#include "csrc/record/lazy_tensor.h"
#include "csrc/record/methods/slots.h"
#include "csrc/run/python_ref.h"

namespace lazyeng::record {
namespace {

struct Answer {
  const char* name;
  PyObject* object;  // owned
};
Answer answers[] = {{"__torch_function__", nullptr}, {"__torch_dispatch__", nullptr}};

PyObject* get_attribute(PyObject* object, char* name) {
  if (Py_TYPE(object) == python_class())  // (a subclass may override)
    for (const Answer& answer : answers)
      if (std::strcmp(name, answer.name) == 0) return Py_NewRef(answer.object);
  // (PyObject_GetAttrString would come back here.)
  const run::PyRef key(PyUnicode_InternFromString(name));
  return key ? PyObject_GetAttr(object, key.get()) : nullptr;
}

}  // namespace

bool install_overrides() {
  for (Answer& answer : answers) {
    answer.object =
        PyObject_GetAttrString(reinterpret_cast<PyObject*>(python_class()), answer.name);
    if (!answer.object) return false;
  }
  python_class()->tp_getattr = get_attribute;
  return true;
}

}  // namespace lazyeng::record
