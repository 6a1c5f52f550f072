// csrc/fuse/device/cuda_functions.h: the driver's functions, as CUDA's headers declare them, which
// are not needed for these few: CUresult and CUdevice are ints; contexts, modules, functions,
// graphs and streams are pointers.
#pragma once

#include "csrc/fuse/device/cuda_driver.h"

namespace lazyeng::fuse {

using Result = int;
constexpr Result kSuccess = 0;

struct CudaDriver::Functions {
  Result (*cuInit)(unsigned flags);
  Result (*cuDeviceGet)(int* device, int ordinal);
  Result (*cuDeviceGetAttribute)(int* value, int attribute, int device);
  Result (*cuDevicePrimaryCtxRetain)(void** context, int device);
  Result (*cuDevicePrimaryCtxRelease_v2)(int device);
  Result (*cuCtxPushCurrent_v2)(void* context);
  Result (*cuCtxPopCurrent_v2)(void** context);
  Result (*cuModuleLoadData)(void** module, const void* image);
  Result (*cuModuleUnload)(void* module);
  Result (*cuModuleGetFunction)(void** function, void* module, const char* name);
  Result (*cuFuncSetAttribute)(void* function, int attribute, int value);
  Result (*cuLaunchKernel)(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                           unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                           void* stream, void** parameters, void** extra);
  Result (*cuGraphLaunch)(void* graph, void* stream);
  Result (*cuGetErrorName)(Result result, const char** text);
  Result (*cuGetErrorString)(Result result, const char** text);
};

}  // namespace lazyeng::fuse
