// csrc/fuse/device/kernel_requests.h: what engine threads want compiled, and the threads that
// compile.
//
// Engine threads ask and go on. A few threads of the program (lazyeng/fuse/background.py) take the
// requests, newest first, as what was planned last is most often what runs next, and answer each.
// Any thread may call any function; none of them waits but next().
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "csrc/fuse/device/device_kernels.h"

namespace lazyeng::fuse {

struct DeviceCalls;

struct KernelRequest {
  uint64_t id = 0;
  c10::DeviceIndex device = 0;
  Variant variant;
  std::shared_ptr<PlanKernels> kernels;      ///< that the answer is for
  GroupPlanRef plan;                         ///< kernels are to be generated for it, or
  std::shared_ptr<const DeviceCalls> calls;  ///< hand-written ones chosen for these
  std::vector<std::string> ops;              ///< the name of each member's op
};

class KernelRequests {
 public:
  /// Called, without a lock and perhaps more than once, when somebody asks and nobody serves. Set
  /// before the engine starts.
  void set_announce(std::function<void()> announce) { announce_ = std::move(announce); }

  /// (The number is given here.)
  void ask(KernelRequest request);

  /// Waits for a request; nothing once stop() was called.
  std::optional<KernelRequest> next();
  /// The device that a request is for, until it is answered.
  c10::DeviceIndex device_of(uint64_t id) const;
  /// The kernels for the request; null: there are none, and it is not asked for again.
  void answer(uint64_t id, std::shared_ptr<const GroupKernels> kernels);
  /// Ends the threads that serve, when they come to next().
  void stop();

  /// Around a fork, whose child would find the lock held for ever. The child has no thread that
  /// serves.
  void hold() { mutex_.lock(); }
  void let_go() { mutex_.unlock(); }
  void after_fork_in_child() {
    served_ = false;
    // The threads that waited for news are gone, and it may count on them: begun anew, not ended.
    std::construct_at(&news_);
  }

  /// Requests that are not answered.
  size_t pending() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable news_;
  std::function<void()> announce_;
  std::vector<KernelRequest> waiting_;
  std::unordered_map<uint64_t, KernelRequest> taken_;
  uint64_t last_id_ = 0;
  bool served_ = false;
  bool stopped_ = false;
};

KernelRequests& kernel_requests();

}  // namespace lazyeng::fuse
