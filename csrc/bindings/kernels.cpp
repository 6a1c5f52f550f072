// csrc/bindings/kernels.cpp: the functions of lazyeng._C for the thread that compiles
// (lazyeng/fuse/background.py): requests of groups that run on devices, and what they get.
#include <torch/csrc/jit/python/pybind_utils.h>

#include <string_view>

#include "csrc/bindings/bindings.h"
#include "csrc/bindings/programs.h"
#include "csrc/fuse/chosen_ops.h"
#include "csrc/fuse/device/device_calls.h"
#include "csrc/fuse/device/kernel_requests.h"
#include "csrc/run/device/own_kernels.h"
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

py::tuple places(const std::vector<int16_t>& places) {
  py::list all;
  for (int16_t place : places) all.append(place < 0 ? py::object(py::none()) : py::int_(place));
  return py::tuple(all);
}

/// The arguments in the order of the schema: of a tensor its place (None: none), of a list of
/// tensors a tuple of places, of a number that is data `...`.
py::tuple arguments(const fuse::DeviceCalls::Call& call) {
  py::list made;
  size_t next = 0;
  const auto place = [&]() -> py::object {
    const int16_t index = call.tensors[next++];
    return index < 0 ? py::object(py::none()) : py::int_(index);
  };
  for (size_t i = 0; i < call.args.size(); ++i) {
    const run::ArgKind kind = call.info->args[i].kind;
    if (kind == run::ArgKind::tensor) {
      made.append(place());
    } else if (run::is_list(kind) && call.args[i].isInt()) {
      py::list elements;
      for (int64_t k = 0; k < call.args[i].toInt(); ++k) elements.append(place());
      made.append(py::tuple(elements));
    } else if (fuse::is_data(*call.info, i, call.args[i])) {
      made.append(py::ellipsis());
    } else {
      made.append(torch::jit::toPyObject(call.args[i]));
    }
  }
  return py::tuple(made);
}

/// lazyeng.fuse.chosen.calls.Calls says what each field means.
py::dict describe_calls(const fuse::DeviceCalls& calls) {
  constexpr const char* kStates[] = {"given", "made", "dead"};
  py::list tensors, made;
  for (const fuse::DeviceCalls::Tensor& tensor : calls.tensors)
    tensors.append(py::make_tuple(dtype_object(tensor.look->dtype()), dims(tensor.look->sizes()),
                                  dims(tensor.look->strides()),
                                  kStates[static_cast<size_t>(tensor.state)], tensor.aligned));
  for (const fuse::DeviceCalls::Call& call : calls.calls)
    made.append(py::make_tuple(call.info->name, arguments(call), places(call.results)));
  py::dict data;
  data["tensors"] = tensors;
  data["calls"] = made;
  data["tf32"] = calls.tf32;
  data["device"] = calls.device;
  return data;
}

/// (id, architecture, program or calls, ops of the members, whether each tensor of the program lies
/// at a multiple of 16 bytes); None at the end.
PyObject* next_kernel_request(PyObject*, PyObject*) {
  return guarded([]() -> PyObject* {
    std::optional<fuse::KernelRequest> request;
    {
      const run::NoGil released;
      request = kernel_requests().next();
    }
    if (!request) Py_RETURN_NONE;
    py::tuple made =
        py::make_tuple(request->id, architecture_of(request->device),
                       request->calls ? describe_calls(*request->calls) : describe(*request->plan),
                       request->ops, request->calls ? py::tuple() : aligned(*request));
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
  } else if (kind == "table") {
    argument.kind = Kind::table;
  } else if (kind == "seed") {
    argument.kind = Kind::seed;
  } else if (kind == "offset") {
    argument.kind = Kind::offset;
  } else if (kind == "argument") {
    argument.kind = Kind::argument;
    argument.call = number.cast<uint16_t>();
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

/// (elements of a piece, columns), each (places of tensors or -1, whether it moves with the pieces,
/// and, if it has no tensors, the call and the position of a list of numbers)
fuse::AddressTable table_of(const py::handle& row) {
  using Column = std::tuple<std::vector<int16_t>, bool, uint16_t, uint16_t>;
  const auto [piece, columns] = row.cast<std::tuple<int64_t, std::vector<Column>>>();
  fuse::AddressTable table{.columns = {}, .piece = piece};
  for (const auto& [tensors, moves, call, index] : columns)
    table.columns.push_back({tensors, moves, call, index});
  return table;
}

/// answer_kernel_request(id, bytes of partial results, kernels, tables, draws), each kernel
/// (key, name, shared, warps, cubin, grid, arguments), an argument (kind, type, index, number).
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
        to.name = kernel[1].cast<std::string>();
        to.grid = kernel[5].cast<fuse::Grid>();
        for (const py::handle& argument : kernel[6]) to.arguments.push_back(argument_of(argument));
      }
    }
    if (made && row.size() > 3)
      for (const py::handle& table : row[3]) made->tables.push_back(table_of(table));
    if (made && row.size() > 4) made->draws = row[4].cast<uint64_t>();
    kernel_requests().answer(id, std::move(made));
    Py_RETURN_NONE;
  });
}

/// set_chosen_ops(names of the ops that have hand-written kernels, pairs of such names, names of
/// ops over lists)
PyObject* set_chosen_ops(PyObject*, PyObject* args) {
  return guarded([&]() -> PyObject* {
    const auto row = py::reinterpret_borrow<py::tuple>(args);
    fuse::set_chosen_ops(row[0].cast<std::vector<std::string>>(), row[1].cast<fuse::Pairs>(),
                         row[2].cast<std::vector<std::string>>());
    run::set_own_kernels(&fuse::run_by_hand);
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
    {"set_chosen_ops", set_chosen_ops, METH_VARARGS, nullptr},
    {"give_up_device_groups", give_up_device_groups, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace lazyeng::bindings
