// csrc/record/methods/methods.cpp: hot methods of LazyTensor in C, driven by a table.
#include <array>
#include <utility>
#include <vector>

#include "csrc/record/lazy_tensor.h"
#include "csrc/record/methods/direct.h"
#include "csrc/record/methods/slots.h"
#include "csrc/run/python_ref.h"

namespace lazyeng::record {
namespace {

/// What comes after the method's arguments.
enum class Last { nothing, two, no };

struct MethodName {
  const char* name;
  /// Overloads, the first that takes the arguments is meant; null: only those before.
  const char* overloads[2] = {"", nullptr};
  bool numbers = false;      ///< Python numbers go for tensors
  const char* op = nullptr;  ///< if it has another name than the method
  Last last = Last::nothing;
};

/// The op has the method's name, or the method is a composite that calls one op with a constant
/// argument. Others, and ops whose Python method does more than call the op, do not belong here.
constexpr MethodName kMethods[] = {
    {"relu"},
    {"exp"},
    {"log"},
    {"sqrt"},
    {"rsqrt"},
    {"abs"},
    {"neg"},
    {"sin"},
    {"cos"},
    {"tanh"},
    {"sigmoid"},
    {"erf"},
    {"floor"},
    {"reciprocal"},
    {"clone"},
    {"mm"},
    {"bmm"},
    {"mv"},
    {"dot"},
    {"addmm"},
    {"addcmul"},
    {"addcdiv"},
    {"lerp", {"Scalar", "Tensor"}},
    {"maximum"},
    {"minimum"},
    {"clamp"},
    {"amax"},
    {"amin"},
    {"argmax"},
    {"argmin"},
    {"cumsum"},
    {"sum", {"", "dim_IntList"}},
    {"mean", {"", "dim"}},
    {"max"},
    {"min"},
    {"prod"},
    {"all", {"", "dim"}},
    {"any", {"", "dim"}},
    {"add", {"Tensor"}, true},
    {"sub", {"Tensor"}, true},
    {"mul", {"Tensor"}, true},
    {"div", {"Tensor"}, true},
    {"pow", {"Tensor_Scalar", "Tensor_Tensor"}},
    {"square", {"Tensor_Scalar"}, false, "pow", Last::two},
    {"softmax", {""}, false, "_softmax", Last::no},
    {"log_softmax", {""}, false, "_log_softmax", Last::no},
    {"eq", {"Tensor", "Scalar"}},
    {"ne", {"Tensor", "Scalar"}},
    {"lt", {"Tensor", "Scalar"}},
    {"le", {"Tensor", "Scalar"}},
    {"gt", {"Tensor", "Scalar"}},
    {"ge", {"Tensor", "Scalar"}},
    {"add_", {"Tensor"}, true},
    {"sub_", {"Tensor"}, true},
    {"mul_", {"Tensor"}, true},
    {"div_", {"Tensor"}, true},
    {"addcmul_"},
    {"addcdiv_"},
    {"lerp_", {"Scalar", "Tensor"}},
    {"copy_"},
    {"zero_"},
    {"fill_", {"Scalar", "Tensor"}},
    {"relu_"},
    {"exp_"},
    {"clamp_"},
    {"view"},
    {"t"},
    {"transpose", {"int"}},
    {"unsqueeze"},
    {"squeeze", {"", "dim"}},
    {"expand"},
    {"permute"},
    {"select", {"int"}},
    {"diagonal"},
};
constexpr size_t kCount = std::size(kMethods);

struct Method {
  DirectOp ops[2];
  PyObject* last = nullptr;       ///< owned
  PyObject* inherited = nullptr;  ///< torch.Tensor's; owned
};
std::array<Method, kCount> methods;  // written at import
std::array<PyMethodDef, kCount> definitions;

constexpr Py_ssize_t kMaxArguments = 6;

PyObject* call(const Method& method, PyObject* self, PyObject* const* args, Py_ssize_t count,
               PyObject* names) {
  const Py_ssize_t values = count + (names ? PyTuple_GET_SIZE(names) : 0);
  if (values > kMaxArguments || Py_TYPE(self) != python_class() || (method.last && names))
    return call_with_self(method.inherited, self, args, count, names);
  std::array<PyObject*, 2 + kMaxArguments> all{self};
  std::copy(args, args + values, all.begin() + 1);
  const Py_ssize_t positional = 1 + count + (method.last ? 1 : 0);
  if (method.last) all[1 + count] = method.last;
  for (const DirectOp& op : method.ops) {
    if (!op.info) break;
    PyObject* result = record_directly(op, all.data(), positional, names);
    if (result || PyErr_Occurred()) return result;
  }
  return call_with_self(method.inherited, self, args, count, names);
}

template <size_t i>
PyObject* entry(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  return call(methods[i], self, args, count, names);
}

template <size_t i>
bool install() {
  Method& method = methods[i];
  const MethodName& name = kMethods[i];
  for (size_t o = 0; o < 2 && name.overloads[o]; ++o)
    method.ops[o] = direct_op((std::string("aten::") + (name.op ? name.op : name.name)).c_str(),
                              name.overloads[o], name.numbers);
  if (name.last == Last::two) method.last = PyLong_FromLong(2);
  if (name.last == Last::no) method.last = Py_NewRef(Py_False);
  return install_method(name.name,
                        reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&entry<i>)),
                        definitions[i], method.inherited);
}

template <size_t... i>
bool install_all(std::index_sequence<i...>) {
  return (install<i>() && ...);
}

}  // namespace

bool install_method(const char* name, PyCFunction function, PyMethodDef& definition,
                    PyObject*& inherited) {
  auto* cls = reinterpret_cast<PyObject*>(python_class());
  inherited = PyObject_GetAttrString(reinterpret_cast<PyObject*>(python_class()->tp_base), name);
  if (!inherited) return false;
  static auto* const docs =
      new std::vector<run::PyRef>;  // keeps the text that the definitions point to
  docs->emplace_back(PyObject_GetAttrString(inherited, "__doc__"));
  PyObject* const doc = docs->back().get();
  definition = {name, function, METH_FASTCALL | METH_KEYWORDS,
                doc && PyUnicode_Check(doc) ? PyUnicode_AsUTF8(doc) : nullptr};
  PyErr_Clear();
  const run::PyRef descriptor(PyDescr_NewMethod(python_class(), &definition));
  return descriptor && PyObject_SetAttrString(cls, name, descriptor.get()) == 0;
}

PyObject* call_with_self(PyObject* inherited, PyObject* self, PyObject* const* args,
                         Py_ssize_t count, PyObject* names) {
  c10::SmallVector<PyObject*, 8> all{self};
  all.append(args, args + count + (names ? PyTuple_GET_SIZE(names) : 0));
  return PyObject_Vectorcall(inherited, all.data(), 1 + count, names);
}

bool install_methods() { return install_all(std::make_index_sequence<kCount>()); }

}  // namespace lazyeng::record
