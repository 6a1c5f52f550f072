// csrc/fuse/triton_launch.cpp: the driver's calls.
#include "csrc/fuse/triton_launch.h"

#include <dlfcn.h>

namespace lazyeng::fuse {
namespace {

// From CUDA's interface, whose headers are not needed for these few: CUresult and CUdevice are
// ints; contexts, modules, functions and streams are pointers.
using Result = int;
constexpr int kSuccess = 0;
constexpr int kComputeCapabilityMajor = 75, kComputeCapabilityMinor = 76;  // of CUdevice_attribute
constexpr int kMaxDynamicSharedSize = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
/// What a kernel may take of shared memory without asking for more.
constexpr uint32_t kSharedWithoutAsking = 48 << 10;
constexpr uint32_t kWarp = 32;
constexpr std::string_view kElf = "\x7f\x45LF";

}  // namespace

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
  Result (*cuGetErrorName)(Result result, const char** text);
  Result (*cuGetErrorString)(Result result, const char** text);
};

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

std::vector<void*> LaunchArguments::addresses() {
  std::vector<void*> all;
  all.reserve(slots_.size() + 2);
  for (Slot& slot : slots_) all.push_back(slot.data());
  all.insert(all.end(), 2, &null_);
  return all;
}

/// Makes the kernel's context that of the calling thread, for a scope: engine threads have none.
class TritonKernel::Current {
 public:
  explicit Current(const TritonKernel& kernel) : driver_(kernel.driver_) {
    driver_.check("cuCtxPushCurrent", driver_.functions().cuCtxPushCurrent_v2(kernel.context_));
  }
  ~Current() {
    void* ours = nullptr;
    driver_.functions().cuCtxPopCurrent_v2(&ours);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const CudaDriver& driver_;
};

TritonKernel::TritonKernel(const CudaDriver& driver, int device, const KernelImage& image)
    : driver_(driver), threads_(kWarp * image.num_warps), shared_(image.shared) {
  // The driver is not told how long the image is, so what is no image must not come to it.
  if (!image.cubin.starts_with(kElf))
    throw std::runtime_error("[TritonKernel] cubin of " + image.name + " is no ELF file, got " +
                             std::to_string(image.cubin.size()) + " bytes");
  const CudaDriver::Functions& cuda = driver_.functions();
  driver_.check("cuInit", cuda.cuInit(0));
  driver_.check("cuDeviceGet", cuda.cuDeviceGet(&device_, device));
  driver_.check("cuDevicePrimaryCtxRetain", cuda.cuDevicePrimaryCtxRetain(&context_, device_));
  try {
    load(image);
  } catch (...) {
    release();
    throw;
  }
}

void TritonKernel::load(const KernelImage& image) {
  const CudaDriver::Functions& cuda = driver_.functions();
  const Current current(*this);
  driver_.check("cuModuleLoadData", cuda.cuModuleLoadData(&module_, image.cubin.data()));
  driver_.check("cuModuleGetFunction",
                cuda.cuModuleGetFunction(&function_, module_, image.name.c_str()));
  if (shared_ > kSharedWithoutAsking)
    driver_.check("cuFuncSetAttribute", cuda.cuFuncSetAttribute(function_, kMaxDynamicSharedSize,
                                                                static_cast<int>(shared_)));
}

/// Errors are not looked at: at exit the driver may be gone before its kernels.
void TritonKernel::release() noexcept {
  const CudaDriver::Functions& cuda = driver_.functions();
  void* ours = nullptr;
  if (module_ && cuda.cuCtxPushCurrent_v2(context_) == kSuccess) {
    cuda.cuModuleUnload(module_);
    cuda.cuCtxPopCurrent_v2(&ours);
  }
  cuda.cuDevicePrimaryCtxRelease_v2(device_);
}

TritonKernel::~TritonKernel() { release(); }

void TritonKernel::launch(const Grid& grid, void* stream, LaunchArguments& arguments) const {
  std::vector<void*> addresses = arguments.addresses();
  const Current current(*this);
  driver_.check("cuLaunchKernel", driver_.functions().cuLaunchKernel(
                                      function_, grid[0], grid[1], grid[2], threads_, 1, 1, shared_,
                                      stream, addresses.data(), nullptr));
}

}  // namespace lazyeng::fuse
