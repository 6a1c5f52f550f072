// csrc/fuse/device/cuda_driver.cpp: opening the driver, and its contexts.
#include "csrc/fuse/device/cuda_driver.h"

#include <dlfcn.h>

#include "csrc/fuse/device/cuda_functions.h"

namespace lazyeng::fuse {
namespace {

constexpr int kComputeCapabilityMajor = 75, kComputeCapabilityMinor = 76;  // of CUdevice_attribute

}  // namespace

void CudaDriver::Close::operator()(void* library) const { dlclose(library); }

CudaDriver::CudaDriver(const char* library) : library_(dlopen(library, RTLD_NOW | RTLD_LOCAL)) {
  if (!library_)
    throw std::runtime_error(std::string("[CudaDriver] cannot open the driver, got ") + dlerror());
  auto functions = std::make_unique<Functions>();
  const auto find = [&]<class F>(F*& function, const char* name) {
    function = reinterpret_cast<F*>(dlsym(library_.get(), name));
    if (!function)
      throw std::runtime_error(std::string("[CudaDriver] ") + library +
                               " lacks a function, got no " + name);
  };
  find(functions->cuInit, "cuInit");
  find(functions->cuDeviceGet, "cuDeviceGet");
  find(functions->cuDeviceGetAttribute, "cuDeviceGetAttribute");
  find(functions->cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
  find(functions->cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease_v2");
  find(functions->cuCtxPushCurrent_v2, "cuCtxPushCurrent_v2");
  find(functions->cuCtxPopCurrent_v2, "cuCtxPopCurrent_v2");
  find(functions->cuModuleLoadData, "cuModuleLoadData");
  find(functions->cuModuleUnload, "cuModuleUnload");
  find(functions->cuModuleGetFunction, "cuModuleGetFunction");
  find(functions->cuFuncSetAttribute, "cuFuncSetAttribute");
  find(functions->cuLaunchKernel, "cuLaunchKernel");
  find(functions->cuGraphLaunch, "cuGraphLaunch");
  find(functions->cuGetErrorName, "cuGetErrorName");
  find(functions->cuGetErrorString, "cuGetErrorString");
  functions_ = std::move(functions);
}

CudaDriver::~CudaDriver() = default;

void CudaDriver::check(const char* call, int result) const {
  if (result == kSuccess) return;
  const char *name = nullptr, *text = nullptr;
  functions_->cuGetErrorName(result, &name);  // (leave null what they do not know)
  functions_->cuGetErrorString(result, &text);
  throw CudaError(result, std::string("[") + call + "] failed, got " +
                              (name ? name : "an unknown error") + " (" + std::to_string(result) +
                              "): " + (text ? text : "no description"));
}

int CudaDriver::architecture(int device) const {
  int handle = 0, major = 0, minor = 0;
  check("cuInit", functions_->cuInit(0));
  check("cuDeviceGet", functions_->cuDeviceGet(&handle, device));
  check("cuDeviceGetAttribute",
        functions_->cuDeviceGetAttribute(&major, kComputeCapabilityMajor, handle));
  check("cuDeviceGetAttribute",
        functions_->cuDeviceGetAttribute(&minor, kComputeCapabilityMinor, handle));
  return 10 * major + minor;
}

PrimaryContext::PrimaryContext(const CudaDriver& driver, int device) : driver_(driver) {
  const CudaDriver::Functions& cuda = driver.functions();
  driver.check("cuInit", cuda.cuInit(0));
  driver.check("cuDeviceGet", cuda.cuDeviceGet(&device_, device));
  driver.check("cuDevicePrimaryCtxRetain", cuda.cuDevicePrimaryCtxRetain(&context_, device_));
}

/// Errors are not looked at: at exit the driver may be gone before what was made with it.
PrimaryContext::~PrimaryContext() { driver_.functions().cuDevicePrimaryCtxRelease_v2(device_); }

PrimaryContext::Current::Current(const PrimaryContext& context) : driver_(context.driver_) {
  driver_.check("cuCtxPushCurrent", driver_.functions().cuCtxPushCurrent_v2(context.context_));
}

PrimaryContext::Current::~Current() {
  void* ours = nullptr;
  driver_.functions().cuCtxPopCurrent_v2(&ours);
}

}  // namespace lazyeng::fuse
