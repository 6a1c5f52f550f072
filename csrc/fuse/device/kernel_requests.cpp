// csrc/fuse/device/kernel_requests.cpp: a stack of requests.
#include "csrc/fuse/device/kernel_requests.h"

namespace lazyeng::fuse {

void KernelRequests::ask(KernelRequest request) {
  bool nobody;
  {
    std::lock_guard lock(mutex_);
    if (stopped_) return;
    request.id = ++last_id_;
    waiting_.push_back(std::move(request));
    nobody = !served_;
    news_.notify_one();
  }
  if (nobody && announce_) announce_();
}

std::optional<KernelRequest> KernelRequests::next() {
  std::unique_lock lock(mutex_);
  served_ = true;
  news_.wait(lock, [this] { return stopped_ || !waiting_.empty(); });
  if (stopped_) return std::nullopt;
  KernelRequest request = std::move(waiting_.back());
  waiting_.pop_back();
  taken_.emplace(request.id, request);
  return request;
}

c10::DeviceIndex KernelRequests::device_of(uint64_t id) const {
  std::lock_guard lock(mutex_);
  return taken_.at(id).device;
}

void KernelRequests::answer(uint64_t id, std::shared_ptr<const GroupKernels> kernels) {
  KernelRequest request;
  {
    std::lock_guard lock(mutex_);
    const auto taken = taken_.find(id);
    if (taken == taken_.end()) return;
    request = std::move(taken->second);
    taken_.erase(taken);
  }
  request.kernels->set(request.variant, std::move(kernels));
}

void KernelRequests::stop() {
  std::lock_guard lock(mutex_);
  stopped_ = true;
  waiting_.clear();
  news_.notify_all();
}

size_t KernelRequests::pending() const {
  std::lock_guard lock(mutex_);
  return waiting_.size() + taken_.size();
}

KernelRequests& kernel_requests() {
  static auto* const requests = new KernelRequests;  // engine threads may outlive statics
  return *requests;
}

}  // namespace lazyeng::fuse
