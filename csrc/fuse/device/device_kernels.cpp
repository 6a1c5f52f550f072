// csrc/fuse/device/device_kernels.cpp: which kernels are there.
#include "csrc/fuse/device/device_kernels.h"

#include <algorithm>
#include <atomic>

#include "csrc/fuse/op_table.h"

namespace lazyeng::fuse {
namespace {

std::atomic<bool> gave_up{false};

}  // namespace

std::shared_ptr<const GroupKernels> PlanKernels::find(const Variant& variant, bool& unknown) {
  std::lock_guard lock(mutex_);
  const auto [entry, added] = variants_.try_emplace(variant);
  unknown = added;
  return entry->second;
}

void PlanKernels::set(const Variant& variant, std::shared_ptr<const GroupKernels> kernels) {
  std::lock_guard lock(mutex_);
  variants_[variant] = std::move(kernels);
}

const CudaDriver* cuda_driver() {
  static const CudaDriver* const driver = []() -> const CudaDriver* {
    try {
      return new CudaDriver;  // (kernels may outlive statics)
    } catch (const std::runtime_error&) {
      return nullptr;
    }
  }();
  return driver;
}

bool runs_groups(c10::Device device) {
  if (device.is_cpu()) return true;
  return device.is_cuda() && !gave_up.load(std::memory_order_relaxed) && cuda_driver();
}

bool has_kernels(const Program& program) {
  return std::all_of(program.reductions.begin(), program.reductions.end(),
                     [](const Reduction& reduction) { return reduction.places.totals == 1; });
}

void give_up_device_groups() {
  gave_up.store(true, std::memory_order_relaxed);
  rules_changed();
}

}  // namespace lazyeng::fuse
