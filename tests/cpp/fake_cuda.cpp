// tests/cpp/fake_cuda.cpp: a library that stands in for CUDA's driver: it writes down each call,
// and fails where it is told to.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace {

std::string calls;
std::string failing;
int error = 0;
std::vector<size_t> sizes;  // of a launch's arguments

// What the driver hands out; nobody looks behind it.
void* const context = reinterpret_cast<void*>(0x10);
void* const module = reinterpret_cast<void*>(0x20);
void* const function = reinterpret_cast<void*>(0x30);

template <class... Args>
int note(const char* name, const char* format = "", Args... args) {
  char text[256];
  std::snprintf(text, sizeof text, format, args...);
  calls += std::string(name) + (*text ? " " : "") + text + "\n";
  return failing == name ? error : 0;
}

}  // namespace

extern "C" {

void fake_reset(const char* call, int code) {
  calls.clear();
  failing = call;
  error = code;
}
void fake_sizes(const size_t* first, size_t n) { sizes.assign(first, first + n); }
const char* fake_calls() { return calls.c_str(); }

int cuInit(unsigned flags) { return note("cuInit", "%u", flags); }
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal + 100;
  return note("cuDeviceGet", "%d", ordinal);
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  *value = attribute == 75 ? 8 : 6;
  return note("cuDeviceGetAttribute", "%d %d", attribute, device);
}
int cuDevicePrimaryCtxRetain(void** to, int device) {
  *to = context;
  return note("cuDevicePrimaryCtxRetain", "%d", device);
}
int cuDevicePrimaryCtxRelease_v2(int device) {
  return note("cuDevicePrimaryCtxRelease", "%d", device);
}
int cuCtxPushCurrent_v2(void* pushed) { return note("cuCtxPushCurrent", "%p", pushed); }
int cuCtxPopCurrent_v2(void** popped) {
  *popped = context;
  return note("cuCtxPopCurrent");
}
int cuModuleLoadData(void** to, const void* image) {
  const int result = note("cuModuleLoadData", "%.3s", static_cast<const char*>(image) + 1);
  if (result == 0) *to = module;
  return result;
}
int cuModuleUnload(void* which) { return note("cuModuleUnload", "%p", which); }
int cuModuleGetFunction(void** to, void* from, const char* name) {
  *to = function;
  return note("cuModuleGetFunction", "%p %s", from, name);
}
int cuFuncSetAttribute(void* which, int attribute, int value) {
  return note("cuFuncSetAttribute", "%p %d %d", which, attribute, value);
}
int cuGraphLaunch(void* graph, void* stream) {
  return note("cuGraphLaunch", "%p %p", graph, stream);
}
int cuLaunchKernel(void* which, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void* stream, void** parameters, void** extra) {
  const int result = note("cuLaunchKernel", "%p (%u %u %u) (%u %u %u) %u %p %s", which, gx, gy, gz,
                          bx, by, bz, shared, stream, extra ? "extra" : "");
  for (size_t i = 0; i < sizes.size(); ++i) {
    calls += "  ";
    const auto* bytes = static_cast<const unsigned char*>(parameters[i]);
    for (size_t k = 0; k < sizes[i]; ++k) {
      char text[3];
      std::snprintf(text, sizeof text, "%02x", bytes[k]);
      calls += text;
    }
    calls += reinterpret_cast<uintptr_t>(bytes) % sizes[i] ? " unaligned\n" : "\n";
  }
  return result;
}
int cuGetErrorName(int code, const char** text) {
  if (code != 700) return 1;
  *text = "CUDA_ERROR_ILLEGAL_ADDRESS";
  return 0;
}
int cuGetErrorString(int code, const char** text) {
  if (code != 700) return 1;
  *text = "an illegal memory access was encountered";
  return 0;
}

}  // extern "C"
