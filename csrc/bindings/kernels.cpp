// csrc/bindings/kernels.cpp: the functions of lazyeng._C for the thread that compiles
// (lazyeng/fuse/background.py): requests of groups that run on devices, and what they get.
#include <string_view>

#include "csrc/bindings/bindings.h"
#include "csrc/bindings/programs.h"
#include "csrc/fuse/kernel_requests.h"
#include "csrc/run/python_ref.h"

namespace lazyeng::bindings {
namespace {

using fuse::kernel_requests;

/// Kernels that are loaded, so that groups with the same source share one. Guarded by the GIL.
using Loaded = std::map<std::pair<int, std::string>, std::weak_ptr<const fuse::TritonKernel>>;
Loaded& loaded() {
  static auto* const kernels = new Loaded;
  return *kernels;
}

/// Runs on the main thread: engine threads neither have the GIL nor wait for it.
int start_compiler(void*) {
  PyObject* const module = PyImport_ImportModule("lazyeng.fuse.background");
  PyObject* const started = module ? PyObject_CallMethod(module, "start", nullptr) : nullptr;
  if (!started) PyErr_WriteUnraisable(nullptr);
  Py_XDECREF(started);
  Py_XDECREF(module);
  return 0;
}

py::tuple aligned(const fuse::KernelRequest& request) {
  py::list flags;
  for (size_t t = 0; t < request.plan->tensors.size(); ++t)
    flags.append(t < 64 && (request.variant.aligned >> t & 1));
  return py::tuple(flags);
}

/// 0: the driver does not say.
int architecture_of(c10::DeviceIndex device) {
  try {
    return fuse::cuda_driver()->architecture(device);
  } catch (const fuse::CudaError&) {
    return 0;
  }
}

/// (id, architecture, program, ops of the members, whether each tensor lies at a multiple of 16
/// bytes); None at the end.
PyObject* next_kernel_request(PyObject*, PyObject*) {
  return guarded([]() -> PyObject* {
    std::optional<fuse::KernelRequest> request;
    {
      const run::NoGil released;
      request = kernel_requests().next();
    }
    if (!request) Py_RETURN_NONE;
    py::tuple made = py::make_tuple(request->id, architecture_of(request->variant.device),
                                    describe(*request->plan), request->ops, aligned(*request));
    return made.release().ptr();
  });
}

fuse::KernelArgument argument_of(const py::handle& row) {
  const auto [kind, type, index, number] =
      row.cast<std::tuple<std::string, std::string, uint16_t, py::object>>();
  using Kind = fuse::KernelArgument::Kind;
  fuse::KernelArgument argument;
  argument.index = index;
  argument.type = type == "i64"    ? fuse::Type::i64
                  : type == "fp32" ? fuse::Type::f32
                  : type == "fp64" ? fuse::Type::f64
                                   : fuse::Type::i32;
  if (kind == "tensor") {
    argument.kind = Kind::tensor;
  } else if (kind == "parameter") {
    argument.kind = Kind::parameter;
  } else if (kind == "partial") {
    argument.kind = Kind::partial;
  } else if (PyFloat_Check(number.ptr())) {
    argument.kind = Kind::real;
    argument.real = number.cast<double>();
  } else {
    argument.kind = Kind::integer;
    argument.integer = number.cast<int64_t>();
  }
  return argument;
}

std::shared_ptr<const fuse::TritonKernel> load(int device, const py::tuple& row) {
  const auto key = std::pair(device, row[0].cast<std::string>());
  if (auto known = loaded()[key].lock()) return known;
  fuse::KernelImage image;
  image.name = row[1].cast<std::string>();
  image.shared = row[2].cast<uint32_t>();
  image.num_warps = row[3].cast<uint32_t>();
  image.cubin = row[4].cast<std::string_view>();
  std::shared_ptr<const fuse::TritonKernel> kernel;
  {
    const run::NoGil released;
    kernel = std::make_shared<const fuse::TritonKernel>(*fuse::cuda_driver(), device, image);
  }
  std::erase_if(loaded(), [](const auto& entry) { return entry.second.expired(); });
  loaded()[key] = kernel;
  return kernel;
}

/// answer_kernel_request(id, bytes of partial results, kernels), each kernel
/// (key, name, shared, warps, cubin, programs, arguments), an argument (kind, type, index, number).
/// Without kernels: there are none.
PyObject* answer_kernel_request(PyObject*, PyObject* args) {
  return guarded([&]() -> PyObject* {
    const auto row = py::reinterpret_borrow<py::tuple>(args);
    const auto id = row[0].cast<uint64_t>();
    std::shared_ptr<fuse::GroupKernels> made;
    if (row.size() > 1) {
      made = std::make_shared<fuse::GroupKernels>();
      const int device = kernel_requests().device_of(id);
      made->partial_bytes = row[1].cast<std::vector<uint64_t>>();
      for (const py::handle& one : row[2]) {
        const auto kernel = py::reinterpret_borrow<py::tuple>(one);
        fuse::DeviceKernel& to = made->kernels.emplace_back();
        to.kernel = load(device, kernel);
        to.programs = kernel[5].cast<uint32_t>();
        for (const py::handle& argument : kernel[6]) to.arguments.push_back(argument_of(argument));
      }
    }
    kernel_requests().answer(id, std::move(made));
    Py_RETURN_NONE;
  });
}

PyObject* pending_kernel_requests(PyObject*, PyObject*) {
  return PyLong_FromSize_t(kernel_requests().pending());
}

PyObject* stop_kernel_requests(PyObject*, PyObject*) {
  kernel_requests().stop();
  Py_RETURN_NONE;
}

PyObject* give_up_device_groups(PyObject*, PyObject*) {
  fuse::give_up_device_groups();
  Py_RETURN_NONE;
}

PyObject* announce_kernel_requests(PyObject*, PyObject*) {
  kernel_requests().set_announce([] { Py_AddPendingCall(&start_compiler, nullptr); });
  Py_RETURN_NONE;
}

}  // namespace

PyMethodDef kernel_methods[] = {
    {"announce_kernel_requests", announce_kernel_requests, METH_NOARGS, nullptr},
    {"next_kernel_request", next_kernel_request, METH_NOARGS, nullptr},
    {"answer_kernel_request", answer_kernel_request, METH_VARARGS, nullptr},
    {"pending_kernel_requests", pending_kernel_requests, METH_NOARGS, nullptr},
    {"stop_kernel_requests", stop_kernel_requests, METH_NOARGS, nullptr},
    {"give_up_device_groups", give_up_device_groups, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace lazyeng::bindings
