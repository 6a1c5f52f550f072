// csrc/fuse/triton_launch.cpp: the driver's calls for kernels.
#include "csrc/fuse/triton_launch.h"

#include "csrc/fuse/device/cuda_functions.h"

namespace lazyeng::fuse {
namespace {

constexpr int kMaxDynamicSharedSize = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
/// What a kernel may take of shared memory without asking for more.
constexpr uint32_t kSharedWithoutAsking = 48 << 10;
constexpr uint32_t kWarp = 32;
constexpr std::string_view kElf = "\x7f\x45LF";

}  // namespace

std::vector<void*> LaunchArguments::addresses() {
  std::vector<void*> all;
  all.reserve(slots_.size() + 2);
  for (Slot& slot : slots_) all.push_back(slot.data());
  all.insert(all.end(), 2, &null_);
  return all;
}

/// The driver is not told how long the image is, so what is no image must not come to it.
static const KernelImage& checked(const KernelImage& image) {
  if (image.cubin.starts_with(kElf)) return image;
  throw std::runtime_error("[TritonKernel] cubin of " + image.name + " is no ELF file, got " +
                           std::to_string(image.cubin.size()) + " bytes");
}

TritonKernel::TritonKernel(const CudaDriver& driver, int device, const KernelImage& image)
    : context_((checked(image), driver), device),
      threads_(kWarp * image.num_warps),
      shared_(image.shared) {
  const PrimaryContext::Current current(context_);
  try {
    load(image);
  } catch (...) {
    if (module_) driver.functions().cuModuleUnload(module_);
    throw;
  }
}

void TritonKernel::load(const KernelImage& image) {
  const CudaDriver& driver = context_.driver();
  const CudaDriver::Functions& cuda = driver.functions();
  driver.check("cuModuleLoadData", cuda.cuModuleLoadData(&module_, image.cubin.data()));
  driver.check("cuModuleGetFunction",
               cuda.cuModuleGetFunction(&function_, module_, image.name.c_str()));
  if (shared_ > kSharedWithoutAsking)
    driver.check("cuFuncSetAttribute", cuda.cuFuncSetAttribute(function_, kMaxDynamicSharedSize,
                                                               static_cast<int>(shared_)));
}

TritonKernel::~TritonKernel() {
  try {
    const PrimaryContext::Current current(context_);
    context_.driver().functions().cuModuleUnload(module_);
  } catch (...) {  // (at exit the driver may be gone before its kernels)
  }
}

void TritonKernel::launch(const Grid& grid, void* stream, LaunchArguments& arguments) const {
  std::vector<void*> addresses = arguments.addresses();
  const PrimaryContext::Current current(context_);
  const CudaDriver& driver = context_.driver();
  driver.check("cuLaunchKernel",
               driver.functions().cuLaunchKernel(function_, grid[0], grid[1], grid[2], threads_, 1,
                                                 1, shared_, stream, addresses.data(), nullptr));
}

}  // namespace lazyeng::fuse
