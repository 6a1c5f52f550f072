// csrc/fuse/graphs/cuda_graph.cpp: calls of Python, launching and letting go without it.
#include "csrc/fuse/graphs/cuda_graph.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <vector>

#include "csrc/fuse/device/cuda_functions.h"
#include "csrc/fuse/device/device_kernels.h"
#include "csrc/run/failures/python_error.h"
#include "csrc/run/python_ref.h"

namespace lazyeng::fuse {
namespace {

using run::Gil;
using run::PyRef;

struct Dropped {
  std::mutex mutex;
  std::vector<PyObject*> graphs;
};

Dropped& dropped() {
  static auto* const instance = new Dropped;  // engine threads may outlive statics
  return *instance;
}

/// With the GIL, and nothing else: torch's destructor calls the driver.
int let_go(void* = nullptr) {
  std::vector<PyObject*> graphs;
  {
    std::lock_guard lock(dropped().mutex);
    graphs.swap(dropped().graphs);
  }
  for (PyObject* graph : graphs) Py_DECREF(graph);
  return 0;
}

/// Throws std::runtime_error if it is not there.
const CudaDriver& driver() {
  if (const CudaDriver* const driver = cuda_driver()) return *driver;
  throw std::runtime_error("[CudaGraph] expected CUDA's driver, got none");
}

}  // namespace

CudaGraph::CudaGraph(c10::Device device)
    : context_(std::make_unique<PrimaryContext>(driver(), device.index())), process_(getpid()) {
  const Gil gil;
  let_go();
  const PyRef type = run::imported("lazyeng.fuse.cuda_graph", "Graph");
  if (type) graph_ = PyObject_CallFunction(type.get(), "i", static_cast<int>(device.index()));
  if (!graph_) run::throw_current_python_error();
}

CudaGraph::~CudaGraph() {
  if (graph_ && open_) abandon();
  if (getpid() != process_) (void)context_.release();  // NOLINT: the parent's
  if (!graph_ || getpid() != process_ || !Py_IsInitialized()) return;
  {
    std::lock_guard lock(dropped().mutex);
    dropped().graphs.push_back(graph_);
  }
  Py_AddPendingCall(&let_go, nullptr);  // (if there are too many, the next capture does it)
}

void CudaGraph::end() {
  const Gil gil;
  open_ = false;
  const PyRef executable(PyObject_CallMethod(graph_, "end", nullptr));
  if (executable) executable_ = PyLong_AsVoidPtr(executable.get());
  if (PyErr_Occurred()) run::throw_current_python_error();
}

void CudaGraph::abandon() noexcept {
  const Gil gil;
  open_ = false;
  if (!PyRef(PyObject_CallMethod(graph_, "abandon", nullptr))) PyErr_Clear();
}

void CudaGraph::launch(void* stream) const {
  const PrimaryContext::Current current(*context_);
  const CudaDriver& driver = context_->driver();
  driver.check("cuGraphLaunch", driver.functions().cuGraphLaunch(executable_, stream));
}

c10::Stream capture_stream(c10::Device device) {
  static std::mutex mutex;
  static auto* const streams = new std::map<c10::DeviceIndex, c10::Stream>;
  std::lock_guard lock(mutex);
  const auto found = streams->find(device.index());
  if (found != streams->end()) return found->second;
  // (Programs seldom ask for streams of high priority, and torch has 32 of them for each device.)
  const c10::impl::VirtualGuardImpl guard(device.type());
  return streams->emplace(device.index(), guard.getNewStream(device, /*priority=*/-1))
      .first->second;
}

}  // namespace lazyeng::fuse
