// csrc/fuse/device_kernels.h: the compiled kernels that run plans on a device.
//
// A plan's kernels depend on the device and on which of its tensors lie at addresses that are
// multiples of 16 (a *variant*): loads may be wide then. The first group that needs a variant asks
// for it (csrc/fuse/kernel_requests.h) and runs unfused, as do others until the answer is there.
#pragma once

#include <c10/core/Device.h>

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "csrc/fuse/plan.h"
#include "csrc/fuse/triton_launch.h"

namespace lazyeng::fuse {

/// One argument of a kernel. What is the same for each run of a plan (sizes, strides) is a number
/// here.
struct KernelArgument {
  enum class Kind : uint8_t {
    tensor,     ///< the address of the plan's tensor `index`
    parameter,  ///< the plan's parameter `index`: a number, or the address of the element
    partial,    ///< the address of the partial results of fold `index`
    integer,
    real,
  };
  Kind kind = Kind::integer;
  Type type = Type::i32;  ///< of a number
  uint16_t index = 0;
  int64_t integer = 0;
  double real = 0;
};

struct DeviceKernel {
  std::shared_ptr<const TritonKernel> kernel;
  uint32_t programs = 1;
  std::vector<KernelArgument> arguments;
};

/// To be launched one after another.
struct GroupKernels {
  std::vector<DeviceKernel> kernels;
  std::vector<uint64_t> partial_bytes;  ///< of each fold's partial results
};

struct Variant {
  c10::DeviceIndex device = 0;
  uint64_t aligned = 0;  ///< a bit for each tensor of the plan; those after the 64th are not
  auto operator<=>(const Variant&) const = default;
};

/// The kernels of one plan. Any thread.
class PlanKernels {
 public:
  /// Null if they are not there; `unknown` is set if nobody has asked for them, and then the caller
  /// does.
  std::shared_ptr<const GroupKernels> find(const Variant& variant, bool& unknown);
  void set(const Variant& variant, std::shared_ptr<const GroupKernels> kernels);

 private:
  std::mutex mutex_;
  std::map<Variant, std::shared_ptr<const GroupKernels>> variants_;  // null: asked for
};

/// The driver; null if there is none.
const CudaDriver* cuda_driver();

/// Whether groups are to be made of ops of that device.
bool runs_groups(c10::Device device);
/// Whether a program can be expressed as a kernel (as has_kernels of csrc/fuse/extent.h).
bool has_kernels(const Program& program);
/// No kernel can be compiled here: from now on ops of devices run one by one.
void give_up_device_groups();

}  // namespace lazyeng::fuse
