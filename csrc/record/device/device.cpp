// csrc/record/device/device.cpp: what torch asks of the device behind PrivateUse1.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "csrc/record/call.h"

namespace lazyeng::record {
namespace {

/// There is one lazyeng device; switching to it does nothing, since tensors report the real device.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kPrivateUse1; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::Device getDevice() const override { return {c10::kPrivateUse1, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  // (Autograd starts a thread per device that it sees here, and with such threads refuses to work
  // in a forked child. Ours reports real devices only, so no thread would have anything to do.)
  c10::DeviceIndex deviceCount() const noexcept override { return 0; }
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, c10::DeviceIndex) const noexcept override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

/// Without these hooks autograd's backward refuses to run.
struct Hooks final : at::PrivateUse1HooksInterface {
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isAvailable() const override { return true; }
  bool isBuilt() const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::globalContext().defaultGenerator(backing_device());
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::detail::createCPUGenerator();
  }
  // torch pins for "the" accelerator, which a registered backend is if there is no other
  // (csrc/record/device/accelerator.h): then nothing copies from pinned memory.
  bool isPinnedPtr(const void*) const override { return false; }
  at::Allocator* getPinnedMemoryAllocator() const override { return at::getCPUAllocator(); }
};

/// Memory belongs to real devices.
struct NoMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t) override {
    TORCH_CHECK(false,
                "lazyeng: a storage cannot be made on the device \"lazyeng\"; make a tensor there "
                "(torch.empty(n, device=\"lazyeng\")), or the storage on ",
                backing_device());
  }
  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }
};

const bool allocator_registered = [] {
  static NoMemory no_memory;
  c10::SetAllocator(c10::kPrivateUse1, &no_memory);
  return true;
}();

// (torch frees the hooks never; they have to stand before the first PrivateUse1 tensor.)
const bool hooks_registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace
}  // namespace lazyeng::record
