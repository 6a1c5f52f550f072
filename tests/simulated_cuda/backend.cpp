// tests/simulated_cuda/backend.cpp: a backend for torch's device "cuda", made of host threads.
//
// It behaves as CUDA does where lazyeng depends on it: kernels are launched and run later, in the
// order of their stream; memory belongs to the stream that it was allocated on, and what is freed
// is overwritten in that stream's order; a kernel that fails takes all of the device down, and
// some later call tells. Each op runs its CPU kernel on the same memory. A test makes everything
// slow (`set_delay`), so that whatever is not ordered is seen. A stream can be captured
// (capture.h).
//
// streams.h, memory.h, ops.h and random.h are its parts; here is what torch and the tests call.
#include <ATen/detail/CUDAHooksInterface.h>
#include <torch/library.h>

#include "random.h"

namespace at {

struct SimulatedCudaHooks final : CUDAHooksInterface {
  explicit SimulatedCudaHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  bool isPinnedPtr(const void* data) const override { return pinned_memory().has(data); }
  Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory(); }
  Device getDeviceFromPtr(void*) const override { return {kCUDA, 0}; }
  Allocator* getCUDADeviceAllocator() const override { return &device_memory; }
  DeviceIndex current_device() const override { return DeviceIndex(::current_device); }
  DeviceIndex getCurrentDevice() const override { return DeviceIndex(::current_device); }
  DeviceIndex deviceCount() const override { return kDevices; }
  int getNumGPUs() const override { return kDevices; }
  const Generator& getDefaultGenerator(DeviceIndex device) const override {
    return default_generator(device < 0 ? ::current_device : device);
  }
  Generator getNewGenerator(DeviceIndex device) const override {
    return make_generator<PhiloxGenerator>(device < 0 ? ::current_device : device);
  }
};

}  // namespace at

namespace {

// In the registry under the name that torch asks for.
const bool hooks_registered = [] {
  at::CUDAHooksRegistry()->Register("CUDAHooks", [](at::CUDAHooksArgs args) {
    return std::unique_ptr<at::CUDAHooksInterface>(new at::SimulatedCudaHooks(args));
  });
  return true;
}();

}  // namespace

template <class Launches>
static int launch_for_driver(int device, void* stream, Launches launches) {
  if (state_of(device).lost) return kDeviceAssert;
  StreamThread& on = stream ? *static_cast<StreamThread*>(stream) : *state_of(device).streams[0];
  if (on.device() != device) return kInvalidHandle;
  try {
    launches(on);
  } catch (const c10::AcceleratorError& error) {
    return error.get_error_code();
  }
  return 0;
}

/// For driver.cpp: a kernel on a stream (null: the device's default one). Returns the driver's
/// error.
int simulated_cuda_launch(int device, void* stream, std::function<void()> kernel) {
  return launch_for_driver(device, stream,
                           [&](StreamThread& on) { launch(on, std::move(kernel)); });
}

namespace {

// ---- graphs

std::map<int64_t, CaptureRef>& graphs() {
  static auto* const made = new std::map<int64_t, CaptureRef>;
  return *made;
}

std::mutex graphs_mutex;

CaptureRef graph_of(int64_t id) {
  std::lock_guard lock(graphs_mutex);
  return graphs().at(id);
}

/// Of the calling thread's stream. (All of these are called on the thread that began it.)
int64_t begin_graph() {
  StreamThread& stream = stream_of(current_device);
  check(current_device);
  if (current_stream[current_device] == 0) Capture::fail(900, "the default stream is not captured");
  if (stream.capture() || own_capture) Capture::fail(900, "it is being captured already");
  own_capture = std::make_shared<Capture>(current_device);
  stream.set_capture(own_capture);
  std::lock_guard lock(graphs_mutex);
  static int64_t last = 0;
  graphs()[++last] = own_capture;
  return last;
}

void end_graph(int64_t id) {
  const CaptureRef capture = graph_of(id);
  StreamThread& stream = stream_of(current_device);
  if (stream.capture() != capture || own_capture != capture)
    Capture::fail(900, "a capture ends on another stream, or thread, than it began on");
  stream.set_capture(nullptr);
  own_capture = nullptr;
  if (captures_to_fail > 0) {
    --captures_to_fail;
    capture->invalid = "a test wants it to fail";
  }
  if (!capture->invalid.empty()) Capture::fail(901, "invalid capture: " + capture->invalid);
}

void drop_graph(int64_t id) {
  CaptureRef dropped;
  std::lock_guard lock(graphs_mutex);
  if (const auto found = graphs().find(id); found != graphs().end()) {
    dropped = std::move(found->second);
    graphs().erase(found);
  }
}

}  // namespace

int simulated_cuda_launch_graph(int device, void* stream, int64_t graph) {
  return launch_for_driver(device, stream,
                           [&](StreamThread& on) { launch(graph_of(graph), on); });
}

namespace {

/// Of what vendors' libraries may do.
bool never(const at::Tensor&, const at::Tensor&, at::IntArrayRef, at::IntArrayRef, int64_t) {
  return false;
}
bool never_by_tensors(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                      int64_t) {
  return false;
}

}  // namespace

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_op>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("copy_", &copy_);
  m.impl("resize_", &resize_);
  m.impl("_fused_rms_norm_backward", &rms_norm_backward);
  m.impl("native_dropout", &native_dropout);
  m.impl("_fused_dropout", &fused_dropout);
  for (const std::string vendor : {"cudnn", "miopen"}) {
    const std::string name = "_use_" + vendor + "_ctc_loss";
    m.impl(name.c_str(), &never);
    m.impl((name + ".Tensor").c_str(), &never_by_tensors);
  }
}

TORCH_LIBRARY(simulated_cuda, m) {
  // How long each kernel takes.
  m.def("set_delay(int us) -> ()", [](int64_t us) { delay_us = us; });
  // Kernels of the device's default stream wait from hold() to let_go(), or those of the others.
  m.def("hold(int device) -> ()", [](int64_t device) { hold_streams(int(device), 0, 1); });
  m.def("hold_others(int device) -> ()",
        [](int64_t device) { hold_streams(int(device), 1, kStreams); });
  m.def("let_go() -> ()", [] {
    held = false;
    held.notify_all();
  });
  // From then on allocations of the device fail beyond so many bytes; its most since then.
  m.def("set_memory(int device, int bytes) -> ()",
        [](int64_t device, int64_t bytes) { device_memory.set_limit(int(device), size_t(bytes)); });
  m.def("most_memory(int device) -> int",
        [](int64_t device) -> int64_t { return int64_t(device_memory.most_used(int(device))); });
  // The default generator's state (torch.cuda has no build).
  m.def("manual_seed(int device, int seed) -> ()", [](int64_t device, int64_t seed) {
    at::Generator(default_generator(int(device))).set_current_seed(uint64_t(seed));
  });
  m.def("offset(int device) -> int", [](int64_t device) -> int64_t {
    return int64_t(default_generator(int(device)).get_offset());
  });
  m.def("host_waits() -> int", []() -> int64_t { return host_waits; });
  // The stream that the calling thread has selected, and selecting one (torch.cuda has no build).
  m.def("exchange_stream(int device, int stream) -> int", [](int64_t device, int64_t stream) {
    return int64_t(std::exchange(current_stream[device], int(stream)));
  });
  m.def("stream_waits(int device, int stream, int for_stream) -> ()",
        [](int64_t device, int64_t stream, int64_t for_stream) {
          auto event = std::make_shared<Event>();
          record_event(event, *state_of(int(device)).streams[for_stream]);
          state_of(int(device)).streams[stream]->enqueue([event] { event->wait(1); });
        });
  // How many kernels a stream has been given.
  m.def("launches_on(int device, int stream) -> int",
        [](int64_t device, int64_t stream) -> int64_t {
          return state_of(int(device)).streams[stream]->kernels;
        });
  // What torch.cuda.CUDAGraph calls (device.py).
  m.def("begin_graph() -> int", &begin_graph);
  m.def("end_graph(int graph) -> ()", &end_graph);
  m.def("launch_graph(int graph) -> ()",
        [](int64_t id) { launch(graph_of(id), stream_of(current_device)); });
  m.def("drop_graph(int graph) -> ()", &drop_graph);
  // How many there are, how often one was launched; so many captures from now on are invalid.
  m.def("graphs() -> int", []() -> int64_t {
    std::lock_guard lock(graphs_mutex);
    return int64_t(graphs().size());
  });
  m.def("graph_launches() -> int", []() -> int64_t { return graph_launches; });
  m.def("fail_captures(int count) -> ()", [](int64_t count) { captures_to_fail = count; });
  m.def("never_capture(str op) -> ()", [](std::string op) { never_captured = std::move(op); });
  m.def("fail_copies(bool all) -> ()", [](bool all) { copies_fail = all; });
  m.def("finished() -> int", []() -> int64_t { return finished; });
  m.def("launches() -> int", []() -> int64_t { return launches; });
  m.def("synchronize() -> ()", [] {
    for (int d = 0; d < kDevices; ++d) Guard().synchronizeDevice(c10::DeviceIndex(d));
  });
}
