// tests/simulated_cuda/driver.cpp: what stands in for CUDA's driver, libcuda.so.1.
//
// A "cubin" is the source of a kernel (kernels.py writes it: a magic number, the number of
// arguments, JSON). A launch copies its arguments, and later, in the order of the stream, a
// function of Python runs the kernel in Triton's interpreter, on the memory that the arguments
// point to.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

int simulated_cuda_launch(int device, void* stream, std::function<void()> kernel);
int simulated_cuda_launch_graph(int device, void* stream, int64_t graph);

namespace {

constexpr int kSuccess = 0;
constexpr size_t kMagic = 4;

struct Module {
  int arguments;
  std::string source;
};

struct Function {
  const Module* module;
  std::string name;
};

/// Returns 0 if the kernel ran.
using Interpreter = int (*)(const char* source, const char* name, const unsigned* grid,
                            const uint64_t* arguments);
Interpreter interpreter = nullptr;

thread_local std::vector<void*> contexts;

int device_of(void* context) { return static_cast<int>(reinterpret_cast<intptr_t>(context)) - 1; }

struct Call {
  const Function* function;
  unsigned grid[3];
  std::vector<uint64_t> arguments;
};

void run(const Call& call) {
  if (interpreter(call.function->module->source.c_str(), call.function->name.c_str(), call.grid,
                  call.arguments.data()) != 0)
    throw std::runtime_error("the kernel failed");
}

}  // namespace

extern "C" {

void simulated_cuda_set_interpreter(Interpreter function) { interpreter = function; }

int cuInit(unsigned) { return kSuccess; }
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return kSuccess;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 75 ? 9 : 0;  // compute capability 9.0
  return kSuccess;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = reinterpret_cast<void*>(static_cast<intptr_t>(device) + 1);
  return kSuccess;
}
int cuDevicePrimaryCtxRelease_v2(int) { return kSuccess; }
int cuCtxPushCurrent_v2(void* context) {
  contexts.push_back(context);
  return kSuccess;
}
int cuCtxPopCurrent_v2(void** context) {
  *context = contexts.back();
  contexts.pop_back();
  return kSuccess;
}
int cuModuleLoadData(void** module, const void* image) {
  char* rest = nullptr;
  const auto* const text = static_cast<const char*>(image) + kMagic;
  const long arguments = std::strtol(text, &rest, 10);
  *module = new Module{static_cast<int>(arguments), rest};
  return kSuccess;
}
int cuModuleUnload(void*) { return kSuccess; }
int cuModuleGetFunction(void** function, void* module, const char* name) {
  *function = new Function{static_cast<Module*>(module), name};
  return kSuccess;
}
int cuFuncSetAttribute(void*, int, int) { return kSuccess; }
int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned, unsigned, unsigned,
                   unsigned, void* stream, void** arguments, void**) {
  auto call = std::make_shared<Call>();
  call->function = static_cast<Function*>(function);
  call->grid[0] = x, call->grid[1] = y, call->grid[2] = z;
  for (int i = 0; i < call->function->module->arguments; ++i) {
    uint64_t bytes;
    std::memcpy(&bytes, arguments[i], sizeof bytes);
    call->arguments.push_back(bytes);
  }
  return simulated_cuda_launch(device_of(contexts.back()), stream, [call] { run(*call); });
}
int cuGraphLaunch(void* graph, void* stream) {
  return simulated_cuda_launch_graph(device_of(contexts.back()), stream,
                                     reinterpret_cast<int64_t>(graph));
}
int cuGetErrorName(int, const char** text) {
  *text = "CUDA_ERROR_SIMULATED";
  return kSuccess;
}
int cuGetErrorString(int, const char** text) {
  *text = "an error of the simulated device";
  return kSuccess;
}
}
