// csrc/fuse/device/cuda_driver.h: CUDA's driver, opened by name.
//
// It is opened when it is needed: there is one build for machines with and without a GPU, made
// without CUDA's headers. Nothing here knows torch either, so that it is tested against a library
// that stands in for the driver (tests/cpp/fake_cuda.cpp).
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

namespace lazyeng::fuse {

/// What the driver refused: "[cuLaunchKernel] failed, got CUDA_ERROR_... (700): ...".
class CudaError : public std::runtime_error {
 public:
  CudaError(int code, const std::string& what) : std::runtime_error(what), code_(code) {}
  int code() const { return code_; }

 private:
  int code_;
};

/// The functions of the driver. Immutable; any thread. Outlives the kernels made with it.
class CudaDriver {
 public:
  /// Opens the library. Throws std::runtime_error if it is not there, or lacks a function.
  explicit CudaDriver(const char* library = "libcuda.so.1");
  ~CudaDriver();
  CudaDriver(const CudaDriver&) = delete;
  CudaDriver& operator=(const CudaDriver&) = delete;

  /// The architecture of a device: 80, 90, ... Throws CudaError.
  int architecture(int device) const;

  struct Functions;
  const Functions& functions() const { return *functions_; }
  /// Throws CudaError if the call's result is an error.
  void check(const char* call, int result) const;

 private:
  struct Close {
    void operator()(void* library) const;
  };
  std::unique_ptr<void, Close> library_;
  std::unique_ptr<const Functions> functions_;
};

/// The primary context of a device, the one that torch uses: it lives as long as this.
class PrimaryContext {
 public:
  /// `device`: its number. Throws CudaError.
  PrimaryContext(const CudaDriver& driver, int device);
  ~PrimaryContext();
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;

  const CudaDriver& driver() const { return driver_; }

  /// Makes it that of the calling thread, for a scope: engine threads have none.
  class Current {
   public:
    explicit Current(const PrimaryContext& context);
    ~Current();
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

   private:
    const CudaDriver& driver_;
  };

 private:
  const CudaDriver& driver_;
  int device_ = 0;  // the driver's handle
  void* context_ = nullptr;
};

}  // namespace lazyeng::fuse
