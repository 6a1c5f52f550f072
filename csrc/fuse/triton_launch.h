// csrc/fuse/triton_launch.h: loading a compiled Triton kernel and launching it, without Python.
//
// A kernel belongs to the primary context of its device. Any thread may launch it; launching is not
// waited for. Memory that a launch uses is the caller's to keep until
// the stream is past it.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "csrc/fuse/device/cuda_driver.h"

namespace lazyeng::fuse {

/// The arguments of one launch, each in the bytes that its type takes in the kernel.
class LaunchArguments {
 public:
  /// A pointer to the device's memory, or a number: int32_t, int64_t, float, double, or two bytes
  /// of float16 or bfloat16.
  template <class T>
  void add(T value) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(Slot));
    slots_.emplace_back();
    std::memcpy(slots_.back().data(), &value, sizeof value);
  }
  size_t size() const { return slots_.size(); }
  /// The address of each argument and of the two that Triton adds: scratch memory, and that of its
  /// profiler, neither of which these kernels use. Valid until the next call of a member.
  std::vector<void*> addresses();

 private:
  // (Eight bytes of alignment, as every argument's type asks for no more.)
  using Slot = std::array<uint64_t, 1>;
  std::vector<Slot> slots_;
  void* null_ = nullptr;
};

/// What the compiler says of a kernel (lazyeng.fuse.compiler.Compiled).
struct KernelImage {
  std::string name;  ///< of the function in the cubin
  uint32_t shared = 0;
  uint32_t num_warps = 4;
  std::string_view cubin;  ///< read by the constructor of TritonKernel only
};

/// How many programs, along the axes of tl.program_id.
using Grid = std::array<uint32_t, 3>;

class TritonKernel {
 public:
  /// Loads the cubin on the device. Throws std::runtime_error (CudaError) if that cannot be done.
  TritonKernel(const CudaDriver& driver, int device, const KernelImage& image);
  ~TritonKernel();
  TritonKernel(const TritonKernel&) = delete;
  TritonKernel& operator=(const TritonKernel&) = delete;

  /// Launches a grid of programs on the stream (a CUstream; null: the default one). Throws
  /// CudaError; errors of kernels that ran before may be among them.
  void launch(const Grid& grid, void* stream, LaunchArguments& arguments) const;

 private:
  void load(const KernelImage& image);

  const PrimaryContext context_;
  void* module_ = nullptr;
  void* function_ = nullptr;
  uint32_t threads_ = 0;
  uint32_t shared_ = 0;
};

}  // namespace lazyeng::fuse
