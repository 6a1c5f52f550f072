// csrc/run/device/own_kernels.cpp: who runs ops of devices.
#include "csrc/run/device/own_kernels.h"

#include <atomic>

#include "csrc/run/node.h"

namespace lazyeng::run {
namespace {

std::atomic<OwnKernels> own_kernels{nullptr};

}  // namespace

void set_own_kernels(OwnKernels run) { own_kernels.store(run, std::memory_order_release); }

bool run_own_kernels(Node& node) {
  if (node.device.is_cpu() || node.discovery || node.host_copy || !node.rewrites.empty())
    return false;
  const OwnKernels run = own_kernels.load(std::memory_order_acquire);
  return run && run(node);
}

}  // namespace lazyeng::run
