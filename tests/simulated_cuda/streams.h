// tests/simulated_cuda/streams.h: threads that are streams, their events, and torch's guard of
// them.
#pragma once

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "capture.h"

namespace {

constexpr int kDevices = 2;
constexpr int kStreams = 10;   // of each device; the first is the default stream
constexpr int kImportant = 2;  // the last ones: they have a higher priority, and are for few
constexpr int kDeviceAssert = 710, kInvalidHandle = 400;

std::atomic<int64_t> delay_us{0};
std::atomic<int64_t> launches{0}, finished{0};  // kernels
std::atomic<int64_t> host_waits{0};             // calls that waited for a stream or an event
std::atomic<bool> held{false};
std::atomic<int64_t> graph_launches{0};
std::atomic<int64_t> captures_to_fail{0};  // so many from now on

using CaptureRef = std::shared_ptr<Capture>;
/// That the calling thread has begun.
thread_local CaptureRef own_capture;

/// Before what waits on the host.
void may_wait() {
  if (own_capture) own_capture->refuse("the host waits");
}

// ---- streams

class StreamThread {
 public:
  explicit StreamThread(int device) : device_(device) {}

  void enqueue(std::function<void()> work) {
    std::lock_guard lock(mutex_);
    if (!running_) std::thread([this] { serve(); }).detach();
    running_ = true;
    work_.push_back(std::move(work));
    ++enqueued_;
    news_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    news_.wait(lock, [&] { return done_ == enqueued_; });
  }
  bool is_done() {
    std::lock_guard lock(mutex_);
    return done_ == enqueued_;
  }
  int device() const { return device_; }

  /// Null: it is not being captured.
  CaptureRef capture() {
    std::lock_guard lock(mutex_);
    return capture_;
  }
  void set_capture(CaptureRef capture) {
    std::lock_guard lock(mutex_);
    capture_ = std::move(capture);
  }

  std::atomic<int64_t> kernels{0};

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      news_.wait(lock, [&] { return !work_.empty(); });
      auto work = std::move(work_.front());
      work_.pop_front();
      lock.unlock();
      work();
      work = nullptr;
      lock.lock();
      ++done_;
      news_.notify_all();
    }
  }

  const int device_;
  std::mutex mutex_;
  std::condition_variable news_;
  std::deque<std::function<void()>> work_;
  uint64_t enqueued_ = 0, done_ = 0;
  bool running_ = false;
  CaptureRef capture_;
};

struct DeviceState {
  std::atomic<bool> lost{false};
  std::vector<std::unique_ptr<StreamThread>> streams;
};

DeviceState& state_of(int device) {
  static auto* const states = [] {
    auto* made = new std::array<DeviceState, kDevices>;
    for (int d = 0; d < kDevices; ++d)
      for (int s = 0; s < kStreams; ++s)
        (*made)[d].streams.push_back(std::make_unique<StreamThread>(d));
    return made;
  }();
  return (*states)[device];
}

thread_local int current_device = 0;
thread_local std::array<int, kDevices> current_stream{};

StreamThread& stream_of(int device) { return *state_of(device).streams[current_stream[device]]; }
StreamThread& stream_of(const c10::Stream& stream) {
  return *state_of(stream.device_index()).streams[stream.id()];
}

/// As every call of CUDA's runtime after a kernel has failed.
void check(int device) {
  if (!state_of(device).lost) return;
  throw c10::AcceleratorError(
      {__func__, __FILE__, __LINE__}, kDeviceAssert,
      "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously "
      "reported at some other API call, so the stacktrace below might be incorrect.\n");
}

void launch(StreamThread& stream, std::function<void()> kernel) {
  DeviceState& device = state_of(stream.device());
  check(stream.device());
  if (const CaptureRef capture = stream.capture())
    return capture->add({std::move(kernel), /*kernel=*/true});
  if (own_capture) own_capture->refuse("work on another stream");
  ++launches;
  ++stream.kernels;
  stream.enqueue([&device, kernel = std::move(kernel)] {
    if (device.lost) return;
    if (const int64_t us = delay_us) std::this_thread::sleep_for(std::chrono::microseconds(us));
    try {
      kernel();
      ++finished;
    } catch (...) {
      device.lost = true;
    }
  });
}

void launch(const CaptureRef& graph, StreamThread& stream) {
  check(stream.device());
  if (stream.capture() || own_capture) Capture::fail(900, "a graph within a capture");
  ++graph_launches;
  // (Each keeps the graph, and so its memory, until it is done.)
  for (const Capture::Work& work : graph->work)
    if (work.kernel)
      launch(stream, [graph, &work] { work.run(); });
    else
      stream.enqueue([graph, &work] { work.run(); });
}

void hold_streams(int device, int first, int end) {
  held = true;
  for (int s = first; s < end; ++s) state_of(device).streams[s]->enqueue([] { held.wait(true); });
}

// ---- events, guard

struct Event {
  std::mutex mutex;
  std::condition_variable news;
  uint64_t recorded = 0, done = 0;
  bool captured = false;  // recorded last on a stream that was being captured
  std::chrono::steady_clock::time_point came;

  void wait(uint64_t version) {
    std::unique_lock lock(mutex);
    news.wait(lock, [&] { return done >= version; });
  }
  bool is_done() {
    std::lock_guard lock(mutex);
    if (captured)
      Capture::fail(907, "operation not permitted on an event last recorded in a capture");
    return done >= recorded;
  }
};
using EventRef = std::shared_ptr<Event>;

void record_event(const EventRef& event, StreamThread& stream) {
  uint64_t version;
  {
    std::lock_guard lock(event->mutex);
    event->captured = stream.capture() != nullptr;
    if (event->captured) return;
    version = ++event->recorded;
  }
  stream.enqueue([event, version] {
    std::lock_guard lock(event->mutex);
    event->done = version;
    event->came = std::chrono::steady_clock::now();
    event->news.notify_all();
  });
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {c10::kCUDA, c10::DeviceIndex(std::exchange(current_device, device.index()))};
  }
  c10::Device getDevice() const override { return {c10::kCUDA, c10::DeviceIndex(current_device)}; }
  void setDevice(c10::Device device) const override { current_device = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current_device = device.index();
  }
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, current_stream[device.index()]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    static std::atomic<int> next{0};
    return c10::Stream(c10::Stream::UNSAFE, device, 1 + next++ % (kStreams - kImportant - 1));
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    if (priority >= 0) return getStreamFromGlobalPool(device, false);
    static std::atomic<int> next{0};
    return c10::Stream(c10::Stream::UNSAFE, device, kStreams - kImportant + next++ % kImportant);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const int before = std::exchange(current_stream[stream.device_index()], int(stream.id()));
    return c10::Stream(c10::Stream::UNSAFE, stream.device(), before);
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<EventRef*>(event);
  }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex,
              c10::EventFlag) const override {
    check(stream.device_index());
    if (!*event) *event = new EventRef(std::make_shared<Event>());
    record_event(*static_cast<EventRef*>(*event), stream_of(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (!event) return;
    const EventRef keep = *static_cast<EventRef*>(event);
    const CaptureRef capture = stream_of(stream).capture();
    uint64_t version;
    {
      std::lock_guard lock(keep->mutex);
      if (capture && keep->captured) return;  // (in one stream all is in order)
      if (capture) capture->refuse("it waits for work that is not captured");
      if (keep->captured) Capture::fail(905, "a stream that is not captured waits for one that is");
      version = keep->recorded;
    }
    stream_of(stream).enqueue([keep, version] { keep->wait(version); });
  }
  bool queryEvent(void* event) const override {
    may_wait();
    check(current_device);
    return !event || (*static_cast<EventRef*>(event))->is_done();
  }
  void synchronizeEvent(void* event) const override {
    may_wait();
    ++host_waits;
    if (!event) return;
    Event& e = **static_cast<EventRef*>(event);
    e.is_done();
    e.wait(e.recorded);
    check(current_device);
  }
  bool queryStream(const c10::Stream& stream) const override {
    may_wait();
    check(stream.device_index());
    return stream_of(stream).is_done();
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    may_wait();
    ++host_waits;
    stream_of(stream).wait();
    check(stream.device_index());
  }
  void synchronizeDevice(c10::DeviceIndex device) const override {
    may_wait();
    for (auto& stream : state_of(device).streams) stream->wait();
    check(device);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override;
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return stream.id() == 0 ? nullptr : &stream_of(stream);
  }
  double elapsedTime(void* from, void* to, c10::DeviceIndex) const override {
    const auto came = [](void* event) { return (*static_cast<EventRef*>(event))->came; };
    return std::chrono::duration<double, std::milli>(came(to) - came(from)).count();
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
};

}  // namespace
