// csrc/record/methods/subscripts.cpp: as torch's applySlicing goes through a key.
#include "csrc/record/methods/subscripts.h"

#include <algorithm>

#include "csrc/record/metadata/offset_views.h"

namespace lazyeng::record {
namespace {

bool is_place(PyObject* part) { return PyLong_CheckExact(part) || PySlice_Check(part); }

/// Whether it is there, an int or None.
bool is_usual(PyObject* bound) { return bound == Py_None || PyLong_CheckExact(bound); }

class Subscript {
 public:
  explicit Subscript(run::GeometryData& look) : look_(look) {}

  bool follow(PyObject* const* parts, size_t count) {
    const auto rank = static_cast<ptrdiff_t>(look_.sizes.size());
    const ptrdiff_t places = std::count_if(parts, parts + count, is_place);
    if (places > rank || std::count(parts, parts + count, Py_Ellipsis) > 1) return false;
    for (size_t i = 0; i < count; ++i) {
      if (parts[i] == Py_Ellipsis)
        dim_ += static_cast<size_t>(rank - places);
      else if (!part(parts[i]))
        return false;
    }
    return true;
  }

 private:
  bool part(PyObject* part) {
    if (PyLong_CheckExact(part)) return index(part);
    if (PySlice_Check(part)) return range(part);
    if (part != Py_None) return false;
    unsqueeze(look_, dim_++);
    return true;
  }

  bool index(PyObject* part) {
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(part, &overflow);
    return !overflow && select(look_, dim_, number);
  }

  bool range(PyObject* part) {
    const auto* bounds = reinterpret_cast<PySliceObject*>(part);
    if (!is_usual(bounds->start) || !is_usual(bounds->stop) || !is_usual(bounds->step))
      return false;
    Py_ssize_t start = 0, stop = 0, step = 0;
    if (PySlice_Unpack(part, &start, &stop, &step) != 0) {
      PyErr_Clear();
      return false;
    }
    return slice(look_, dim_++, start, stop, step);
  }

  run::GeometryData& look_;
  size_t dim_ = 0;  // that the next part is about
};

}  // namespace

bool follow_subscript(run::GeometryData& look, PyObject* key) {
  Subscript subscript(look);
  if (!PyTuple_CheckExact(key)) return subscript.follow(&key, 1);
  return subscript.follow(PySequence_Fast_ITEMS(key), static_cast<size_t>(PyTuple_GET_SIZE(key)));
}

}  // namespace lazyeng::record
