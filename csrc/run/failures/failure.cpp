// csrc/run/failures/failure.cpp: from a caught C++ exception to the Python exception a reader gets.
#include "csrc/run/failures/failure.h"

#include <algorithm>

#include "csrc/engine/reserve.h"
#include "csrc/run/failures/python_error.h"
#include "csrc/run/python_ref.h"

namespace lazyeng::run {
namespace {

PyRef errors_function(const char* name) { return imported("lazyeng.errors", name); }

/// What the calling thread is handling, out of sight: a new exception would take it for its
/// context.
class HandlesNothing {
 public:
  HandlesNothing() : handled_(PyErr_GetHandledException()) { PyErr_SetHandledException(nullptr); }
  ~HandlesNothing() { PyErr_SetHandledException(handled_.get()); }
  HandlesNothing(const HandlesNothing&) = delete;
  HandlesNothing& operator=(const HandlesNothing&) = delete;

 private:
  const PyRef handled_;
};

/// The C++ exception as a Python one. It has nothing to do with what its first reader is handling.
PyRef translate(const std::exception_ptr& error) {
  const HandlesNothing here;
  translate_to_python(error);
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (value && trace) PyException_SetTraceback(value, trace);
  Py_XDECREF(type);
  Py_XDECREF(trace);
  return PyRef(value);
}

/// [(op, inputs, stack, forward stack)]
PyRef candidates_of(const FailureRoot& root) {
  PyRef list(PyList_New(0));
  for (const FailureRoot::Candidate& candidate : root.candidates) {
    PyRef inputs = string_list(candidate.inputs);
    PyRef stack(stacks::to_python(candidate.stack));
    PyRef forward(stacks::to_python(candidate.forward_stack));
    if (!list || !inputs || !stack || !forward) return PyRef();
    PyRef item(
        Py_BuildValue("(sOOO)", candidate.op.c_str(), inputs.get(), stack.get(), forward.get()));
    if (!item || PyList_Append(list.get(), item.get()) != 0) return PyRef();
  }
  return list;
}

/// What `errors.build` wants to know of a lost device; false with a Python error set.
bool add_device_loss(const FailureRoot& root, PyObject* kwargs) {
  if (root.lost_device.empty()) return true;
  PyRef loss(Py_BuildValue("(sNn)", root.lost_device.c_str(), candidates_of(root).release(),
                           static_cast<Py_ssize_t>(root.others)));
  return loss && PyDict_SetItemString(kwargs, "device_loss", loss.get()) == 0;
}

PyObject* build(const FailureRoot& root, const std::vector<std::string>& path, size_t length) {
  PyObject* original = root.original();
  if (!original) return nullptr;
  PyRef function = errors_function("build");
  PyRef inputs = string_list(root.inputs);
  PyRef names = string_list(path);
  PyRef stack(stacks::to_python(root.stack));
  PyRef forward(stacks::to_python(root.forward_stack));
  if (!function || !inputs || !names || !stack || !forward) return nullptr;
  PyRef args(PyTuple_Pack(1, original));
  PyRef kwargs(Py_BuildValue("{s:s,s:O,s:O,s:O,s:O,s:n,s:K}", "op", root.op.c_str(), "inputs",
                             inputs.get(), "stack", stack.get(), "forward_stack", forward.get(),
                             "path", names.get(), "path_length", static_cast<Py_ssize_t>(length),
                             "root_id", static_cast<unsigned long long>(root.id)));
  if (!args || !kwargs || !add_device_loss(root, kwargs.get())) return nullptr;
  PyObject* const exception = PyObject_Call(function.get(), args.get(), kwargs.get());
  if (exception) root.reported.store(true, std::memory_order_relaxed);  // (not after Ctrl-C)
  return exception;
}

/// False, with that as the Python error, if a handler of a signal raised meanwhile (Ctrl-C).
bool hide_while_unwinding(PyObject* exception) {
  PyRef function = errors_function("hide_while_unwinding");
  if (function && PyRef(PyObject_CallOneArg(function.get(), exception))) return true;
  return clear_unless_interrupt();
}

const OpFailure& as_op_failure(const engine::FailurePtr& failure) {
  return static_cast<const OpFailure&>(*failure);
}

void warn_unseen(const FailureRoot& root) {
  PyRef original(Py_XNewRef(root.original()));
  PyRef function = errors_function("warn_unseen");
  PyRef stack(stacks::to_python(root.stack));
  PyRef forward(stacks::to_python(root.forward_stack));
  if (original && function && stack && forward)
    PyRef(PyObject_CallFunction(function.get(), "OsOO", original.get(), root.op.c_str(),
                                stack.get(), forward.get()));
}

}  // namespace

FailureRoot::~FailureRoot() {
  alive.fetch_sub(1, std::memory_order_relaxed);
  const engine::Owing owing;
  if (!Py_IsInitialized()) return;  // the interpreter is gone, and with it every Python object
  Gil gil;
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);  // a destructor leaves the pending Python error as it was
  if (!reported.exchange(true)) warn_unseen(*this);
  if (PyErr_Occurred()) PyErr_WriteUnraisable(nullptr);
  Py_CLEAR(original_);
  error = nullptr;
  PyErr_Restore(type, value, trace);
}

PyObject* FailureRoot::original() const {
  if (original_) return original_;
  PyRef value = translate(error);
  PyRef function = errors_function("detach");
  if (!value || !function) return nullptr;
  PyRef made(PyObject_CallFunctionObjArgs(function.get(), value.get(), nullptr));
  if (!made) return nullptr;
  if (!original_) original_ = made.release();  // (detach may have let another thread in)
  error = nullptr;
  return original_;
}

OpFailure::OpFailure(std::shared_ptr<FailureRoot> root, std::string node)
    : root_(std::move(root)), last_(std::move(node)) {}

OpFailure::OpFailure(std::shared_ptr<const OpFailure> cause, std::string node)
    : root_(cause->root_),
      cause_(cause->length_ > kMostNames ? cause->cause_ : cause),
      length_(cause->length_ + 1),
      last_(std::move(node)) {}

std::vector<std::string> OpFailure::path() const {
  std::vector<std::string> names;
  for (const OpFailure* at = this; at; at = at->cause_.get()) names.push_back(at->last_);
  std::reverse(names.begin(), names.end());
  return names;
}

PyObject* build_exception(const OpFailure& failure) {
  return build(*failure.root(), failure.path(), failure.path_length());
}

PyObject* build_exception(const FailureRoot& root) { return build(root, {root.label}, 1); }

void set_python_error(const engine::FailurePtr& failure) {
  const FailureRoot& root = *as_op_failure(failure).root();
  const bool reported = root.reported;
  PyRef exception(build_exception(as_op_failure(failure)));
  if (!exception) return;
  if (!hide_while_unwinding(exception.get())) {
    if (!reported) root.reported = false;  // nobody gets to see it
    return;
  }
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.get())), exception.get());
}

void throw_python_error(const engine::FailurePtr& failure) {
  Gil gil;
  set_python_error(failure);
  throw_current_python_error();
}

void throw_if_interrupt(const engine::FailurePtr& failure) {
  const FailureRoot& root = *as_op_failure(failure).root();
  if (!root.from_python) return;
  Gil gil;
  PyObject* const original = root.original();
  if (!original && !clear_unless_interrupt()) throw_current_python_error();
  if (original && !PyErr_GivenExceptionMatches(original, PyExc_Exception))
    throw_python_error(failure);
}

}  // namespace lazyeng::run
