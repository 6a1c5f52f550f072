// csrc/fuse/cuda_graph.cpp: calls of Python, and letting go without the GIL.
#include "csrc/fuse/cuda_graph.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <vector>

#include "csrc/run/python_error.h"
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

void call(PyObject* graph, const char* method) {
  if (!PyRef(PyObject_CallMethod(graph, method, nullptr))) run::throw_current_python_error();
}

}  // namespace

CudaGraph::CudaGraph(c10::Device device) : process_(getpid()) {
  const Gil gil;
  let_go();
  const PyRef type = run::imported("lazyeng.fuse.cuda_graph", "Graph");
  if (type) graph_ = PyObject_CallFunction(type.get(), "i", static_cast<int>(device.index()));
  if (!graph_) run::throw_current_python_error();
}

CudaGraph::~CudaGraph() {
  if (graph_ && open_) abandon();
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
  call(graph_, "end");
}

void CudaGraph::abandon() noexcept {
  const Gil gil;
  open_ = false;
  if (!PyRef(PyObject_CallMethod(graph_, "abandon", nullptr))) PyErr_Clear();
}

void CudaGraph::launch() const {
  const Gil gil;
  call(graph_, "launch");
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
