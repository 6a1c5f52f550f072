// csrc/fuse/device/device_kernels.h: the compiled kernels that run plans on a device.
//
// A plan's kernels depend on the device and on which of its tensors lie at addresses that are
// multiples of 16 (a *variant*): loads may be wide then. The first group that needs a variant asks
// for it (csrc/fuse/device/kernel_requests.h) and runs unfused, as do others until the answer is
// there.
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
    tensor,     ///< the address of the plan's, or the calls', tensor `index`
    parameter,  ///< the plan's parameter `index`: a number, or the address of the element
    argument,   ///< a number: of call `call`, the argument `index`
    partial,    ///< the address of the partial results `index`
    table,      ///< the address of the table `index`
    seed,       ///< of the device's default generator
    offset,     ///< the same: numbers that each thread has drawn so far
    integer,
    real,
  };
  Kind kind = Kind::integer;
  Type type = Type::i32;  ///< of a number
  uint16_t index = 0;
  uint16_t call = 0;
  int64_t integer = 0;
  double real = 0;
};

struct DeviceKernel {
  std::shared_ptr<const TritonKernel> kernel;
  std::string name;
  Grid grid{1, 1, 1};
  std::vector<KernelArgument> arguments;
};

/// Where the pieces of lists of tensors are, so that one launch does them all. Tensor i of each
/// list belongs together; a row stands for each piece of it: of each column an address, or a
/// number, and then how many elements the piece has. In the device's memory, int64.
struct AddressTable {
  struct Column {
    std::vector<int16_t> tensors;  ///< of the calls; negative: 0 stands there. None: numbers
    bool moves = false;            ///< with the pieces; otherwise the address is the tensor's own
    uint16_t call = 0, index = 0;  ///< of the argument that is a list of numbers, float64 here
  };
  std::vector<Column> columns;  ///< the elements are those of the first one's tensors
  int64_t piece = 0;            ///< elements
};

/// To be launched one after another.
struct GroupKernels {
  std::vector<DeviceKernel> kernels;
  std::vector<uint64_t> partial_bytes;  ///< of each fold's partial results
  std::vector<AddressTable> tables;
  /// By so much they move on the offset of the device's default generator: a multiple of 4. 0: they
  /// draw nothing.
  uint64_t draws = 0;
};

struct Variant {
  c10::DeviceIndex device = 0;
  uint64_t aligned = 0;  ///< a bit for each tensor of the plan; those after the 64th are not
  auto operator<=>(const Variant&) const = default;
};

/// The kernels of one plan, or of calls that look alike. Any thread.
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
