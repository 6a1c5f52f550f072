// csrc/record/holder.h: the thread that pushes a window which was held back for fusion, once
// recording pauses.
//
// A window of nothing but nodes that can be fused is not pushed at once when a worker is idle: the
// nodes to come may join their group, and a result that nobody holds by then is never written. Who
// reads a result pushes the window himself; this thread is for windows that nobody asks about.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

namespace lazyeng::record {

class Holder {
 public:
  /// `newest` tells the number of the newest node in the window, 0 if it is empty; `push` pushes
  /// the window. Both are called by the thread, without any lock.
  Holder(std::function<uint64_t()> newest, std::function<void()> push)
      : newest_(std::move(newest)), push_(std::move(push)) {}
  ~Holder() { stop(); }

  /// Not while another thread is in start() or stop().
  void start();
  void stop();
  bool runs() const noexcept { return runs_.load(std::memory_order_relaxed); }

  /// To be called after a node was put into a window that is held. Costs a load while the thread
  /// is awake.
  void wake() noexcept;

 private:
  void work();
  void sleep();

  const std::function<uint64_t()> newest_;
  const std::function<void()> push_;
  std::atomic<bool> runs_{false};
  std::atomic<bool> awake_{false};
  std::thread thread_;
};

}  // namespace lazyeng::record
