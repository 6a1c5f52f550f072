// csrc/bindings.cpp: the Python module lazyeng._C; its functions stand in csrc/bindings/.
//
// Makes the recorder, and with it the engine.
#include "csrc/bindings/bindings.h"

#include "csrc/bindings/generator_hooks.h"
#include "csrc/bindings/legacy_types.h"
#include "csrc/fuse/bits/torch_functions.h"
#include "csrc/record/lazy_tensor.h"
#include "csrc/record/library.h"
#include "csrc/record/methods/slots.h"
#include "csrc/record/process/fork.h"
#include "csrc/record/recorder.h"
#include "csrc/run/python_ref.h"

namespace lazyeng::bindings {
namespace {

PyObject* init(PyObject*, PyObject* args) {
  PyObject* cls = nullptr;
  unsigned workers = 0;
  if (!PyArg_ParseTuple(args, "OI", &cls, &workers)) return nullptr;
  if (record::current_recorder())
    return PyErr_Format(PyExc_ImportError,
                        "lazyeng was imported before in this process, and cannot be imported a "
                        "second time: it was taken out of sys.modules, or is there twice");
  return guarded([&] {
    record::set_python_class(reinterpret_cast<PyTypeObject*>(cls));
    // It stays: daemon threads stand in it while the process ends.
    record::set_current_recorder(new record::Recorder(engine::make_threaded_engine(workers)));
    record::install_fork_handlers();
    const size_t kernels = record::register_kernels();
    if (!record::install_slots() || !record::install_methods() || !record::install_view_methods() ||
        !record::install_read_methods() || !record::install_overrides())
      return static_cast<PyObject*>(nullptr);
    return install_generator_hooks() && install_legacy_types() ? PyLong_FromSize_t(kernels)
                                                               : nullptr;
  });
}

PyMethodDef init_method[] = {{"init", init, METH_VARARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT,
                      "lazyeng._C",
                      nullptr,
                      -1,
                      init_method,
                      nullptr,
                      nullptr,
                      nullptr,
                      nullptr};

/// New reference; null with a Python error.
PyObject* make_module() {
  run::PyRef made(PyModule_Create(&module));
  if (!made) return nullptr;
  fuse::prepare_torch_functions();
  for (PyMethodDef* methods : {tensor_methods, memory_methods, block_methods, engine_methods,
                               setting_methods, stack_methods, trace_methods, graph_methods,
                               fusion_methods, kernel_methods, timing_methods})
    if (PyModule_AddFunctions(made.get(), methods) != 0) return nullptr;
  return made.release();
}

}  // namespace
}  // namespace lazyeng::bindings

PyMODINIT_FUNC PyInit__C() { return lazyeng::bindings::make_module(); }
