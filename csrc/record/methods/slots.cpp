// csrc/record/methods/slots.cpp: operators of LazyTensor as C slots.
//
// CPython calls a slot with the operands in the order of the expression, for either operand's type.
// The function that torch.Tensor's class has in its binary slots (CPython's own, which looks up
// `__add__`) asks whether the type uses that very function, so it cannot be called from ours: we
// call the inherited `__add__` and `__radd__` as it would. Other slots' inherited functions can be
// called.
#include "csrc/record/methods/slots.h"

#include <torch/csrc/autograd/python_variable.h>

#include <array>

#include "csrc/record/lazy_tensor.h"
#include "csrc/record/methods/direct.h"
#include "csrc/run/python_ref.h"

namespace lazyeng::record {
namespace {

struct OpName {
  const char* name = nullptr;
  const char* overload = "";
};

/// The op for a tensor on the other side, and the one for a number.
struct Overloads {
  DirectOp tensor;
  DirectOp number;
};

DirectOp find(const OpName& op, bool numbers) {
  return op.name ? direct_op(op.name, op.overload, numbers) : DirectOp();
}

bool is_number(PyObject* object) {
  return PyFloat_CheckExact(object) || PyLong_CheckExact(object) || PyBool_Check(object);
}

/// Null without a Python error: take the inherited way.
PyObject* record_binary(const Overloads& ops, PyObject* self, PyObject* other) {
  PyObject* const args[] = {self, other};
  return record_directly(is_number(other) ? ops.number : ops.tensor, args, 2);
}

// ---- binary operators

enum Binary : size_t { add, subtract, multiply, divide, matrix_multiply, power, binary_count };

struct BinaryNames {
  const char *forward, *reflected;  ///< methods of torch.Tensor
  OpName tensor, number, reflected_number;
};
constexpr BinaryNames kBinary[binary_count] = {
    {"__add__",
     "__radd__",
     {"aten::add", "Tensor"},
     {"aten::add", "Tensor"},
     {"aten::add", "Tensor"}},
    {"__sub__",
     "__rsub__",
     {"aten::sub", "Tensor"},
     {"aten::sub", "Tensor"},
     {"aten::rsub", "Scalar"}},
    {"__mul__",
     "__rmul__",
     {"aten::mul", "Tensor"},
     {"aten::mul", "Tensor"},
     {"aten::mul", "Tensor"}},
    {"__truediv__", "__rtruediv__", {"aten::div", "Tensor"}, {"aten::div", "Tensor"}, {}},
    {"__matmul__", "__rmatmul__", {"aten::mm"}, {}, {}},  // of two matrices; others are composites
    {"__pow__", "__rpow__", {}, {"aten::pow", "Tensor_Scalar"}, {}},
};

struct BinarySlot {
  Overloads ops, reflected_ops;
  PyObject* forward = nullptr;  ///< the inherited methods; owned
  PyObject* reflected = nullptr;
};
std::array<BinarySlot, binary_count> binary_slots;  // written at import

PyObject* inherited_binary(const BinarySlot& slot, bool ours, bool reflected, PyObject* a,
                           PyObject* b) {
  if (ours) {
    PyObject* const args[] = {a, b};
    PyObject* result = PyObject_Vectorcall(slot.forward, args, 2, nullptr);
    if (result != Py_NotImplemented || !reflected) return result;
    Py_DECREF(result);
  }
  if (!reflected) Py_RETURN_NOTIMPLEMENTED;
  PyObject* const args[] = {b, a};
  return PyObject_Vectorcall(slot.reflected, args, 2, nullptr);
}

/// A plain tensor on the left, or one of another class, does what it has itself: CPython asks it
/// next.
bool is_tensor(PyObject* object) { return PyObject_TypeCheck(object, python_class()->tp_base); }

PyObject* binary(const BinarySlot& slot, PyObject* a, PyObject* b) {
  PyObject* result = nullptr;
  if (Py_TYPE(a) == python_class())
    result = record_binary(slot.ops, a, b);
  else if (is_number(a))
    result = record_binary(slot.reflected_ops, b, a);
  if (result || PyErr_Occurred()) return result;
  const bool ours = PyObject_TypeCheck(a, python_class());
  const bool reflected = !is_tensor(a) && PyObject_TypeCheck(b, python_class());
  return inherited_binary(slot, ours, reflected, a, b);
}

template <size_t op>
PyObject* binary_slot(PyObject* a, PyObject* b) {
  return binary(binary_slots[op], a, b);
}

PyObject* power_slot(PyObject* a, PyObject* b, PyObject* modulus) {
  if (modulus == Py_None) return binary(binary_slots[power], a, b);
  PyObject* const args[] = {a, b, modulus};
  if (!PyObject_TypeCheck(a, python_class())) Py_RETURN_NOTIMPLEMENTED;
  return PyObject_Vectorcall(binary_slots[power].forward, args, 3, nullptr);
}

// ---- slots whose inherited function can be called

constexpr OpName kInPlace[] = {{"aten::add_", "Tensor"},
                               {"aten::sub_", "Tensor"},
                               {"aten::mul_", "Tensor"},
                               {"aten::div_", "Tensor"}};
constexpr const char* kCompare[] = {"aten::lt", "aten::le", "aten::eq",
                                    "aten::ne", "aten::gt", "aten::ge"};  // by Py_LT ...

std::array<Overloads, 4> in_place_ops;
std::array<binaryfunc, 4> inherited_in_place;
std::array<Overloads, 6> compare_ops;
richcmpfunc inherited_compare;
DirectOp negative_op;
unaryfunc inherited_negative;
binaryfunc inherited_subscript;
objobjargproc inherited_assign;

template <size_t op>
PyObject* in_place_slot(PyObject* a, PyObject* b) {
  PyObject* result = record_binary(in_place_ops[op], a, b);
  return result || PyErr_Occurred() ? result : inherited_in_place[op](a, b);
}

PyObject* compare_slot(PyObject* a, PyObject* b, int op) {
  PyObject* result = record_binary(compare_ops[op], a, b);
  return result || PyErr_Occurred() ? result : inherited_compare(a, b, op);
}

PyObject* negative_slot(PyObject* a) {
  PyObject* result = record_directly(negative_op, &a, 1);
  return result || PyErr_Occurred() ? result : inherited_negative(a);
}

PyObject* subscript_slot(PyObject* self, PyObject* key) {
  PyObject* result = subscript_directly(self, key);
  return result || PyErr_Occurred() ? result : inherited_subscript(self, key);
}

/// What torch's binding does with a key by numbers: the view, and then a copy to all of that.
int assign_slot(PyObject* self, PyObject* key, PyObject* value) {
  if (!value || key == Py_Ellipsis) return inherited_assign(self, key, value);
  const run::PyRef view(subscript_directly(self, key));
  if (view) return inherited_assign(view.get(), Py_Ellipsis, value);
  return PyErr_Occurred() ? -1 : inherited_assign(self, key, value);
}

// ---- installing

bool find_binary_ops() {
  for (size_t op = 0; op < binary_count; ++op) {
    const BinaryNames& names = kBinary[op];
    BinarySlot& slot = binary_slots[op];
    const bool numbers = op != matrix_multiply && op != power;
    slot.ops = {find(names.tensor, numbers), find(names.number, numbers)};
    slot.reflected_ops.number = find(names.reflected_number, numbers);
    auto* base = reinterpret_cast<PyObject*>(python_class()->tp_base);
    slot.forward = PyObject_GetAttrString(base, names.forward);
    slot.reflected = PyObject_GetAttrString(base, names.reflected);
    if (!slot.forward || !slot.reflected) return false;
  }
  return true;
}

void find_other_ops() {
  for (size_t op = 0; op < in_place_ops.size(); ++op)
    in_place_ops[op] = {find(kInPlace[op], true), find(kInPlace[op], true)};
  for (size_t op = 0; op < compare_ops.size(); ++op)
    compare_ops[op] = {find({kCompare[op], "Tensor"}, false),
                       find({kCompare[op], "Scalar"}, false)};
  negative_op = find({"aten::neg"}, false);
}

void keep_inherited(const PyTypeObject& cls) {
  const PyNumberMethods& number = *cls.tp_as_number;
  inherited_in_place = {number.nb_inplace_add, number.nb_inplace_subtract,
                        number.nb_inplace_multiply, number.nb_inplace_true_divide};
  inherited_negative = number.nb_negative;
  inherited_compare = cls.tp_richcompare;
  inherited_subscript = cls.tp_as_mapping->mp_subscript;
  inherited_assign = cls.tp_as_mapping->mp_ass_subscript;
}

}  // namespace

bool install_slots() {
  PyTypeObject& cls = *python_class();
  if (!find_binary_ops()) return false;
  find_other_ops();
  keep_inherited(cls);
  PyNumberMethods& number = *cls.tp_as_number;
  number.nb_add = binary_slot<add>;
  number.nb_subtract = binary_slot<subtract>;
  number.nb_multiply = binary_slot<multiply>;
  number.nb_true_divide = binary_slot<divide>;
  number.nb_matrix_multiply = binary_slot<matrix_multiply>;
  number.nb_power = power_slot;
  number.nb_inplace_add = in_place_slot<0>;
  number.nb_inplace_subtract = in_place_slot<1>;
  number.nb_inplace_multiply = in_place_slot<2>;
  number.nb_inplace_true_divide = in_place_slot<3>;
  number.nb_negative = negative_slot;
  cls.tp_richcompare = compare_slot;
  cls.tp_as_mapping->mp_subscript = subscript_slot;
  cls.tp_as_mapping->mp_ass_subscript = assign_slot;
  PyType_Modified(&cls);
  return true;
}

}  // namespace lazyeng::record
