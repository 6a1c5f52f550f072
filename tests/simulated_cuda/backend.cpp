// tests/simulated_cuda/backend.cpp: a backend for torch's device "cuda", made of host threads.
//
// It behaves as CUDA does where lazyeng depends on it: kernels are launched and run later, in the
// order of their stream; memory belongs to the stream that it was allocated on, and what is freed
// is overwritten in that stream's order; a kernel that fails takes all of the device down, and
// some later call tells. Each op runs its CPU kernel on the same memory. A test makes everything
// slow (`set_delay`), so that whatever is not ordered is seen. A stream can be captured
// (capture.h).
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sub.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
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

// ---- memory

struct Block {
  void* data;
  size_t size;
  StreamThread* stream;
  std::set<StreamThread*> also_used_by;
  CaptureRef pool;  // that it is of; null: anybody's
};

/// As CUDA's caching allocator: a freed block goes to the next that asks on the same stream, at
/// once. What other streams do with it is waited for only if recordDataPtrOnStream told of it.
/// Unlike CUDA's, it gives nothing back by itself when a device is full: emptyCache() is asked to.
class DeviceMemory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    const int device = current_device;
    Block* block = take(stream_of(device), (std::max<size_t>(size, 1) + 511) / 512 * 512);
    return {block->data, block, &give_back, {c10::kCUDA, c10::DeviceIndex(device)}};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t count) const override {
    std::memcpy(to, from, count);
  }

  bool initialized() override { return true; }
  /// What no stream is at work on.
  void emptyCache(c10::MempoolId_t) override {
    std::lock_guard lock(mutex());
    collect();
    for (auto& [key, blocks] : free_blocks()) {
      for (Block* block : blocks) {
        block->stream->wait();
        used(block->stream->device()) -= block->size;
        std::free(block->data);
        delete block;
      }
      blocks.clear();
    }
  }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    Block* block = static_cast<Block*>(data.get_context());
    if (!block || data.get_deleter() != &give_back || block->stream == &stream_of(stream)) return;
    std::lock_guard lock(mutex());
    block->also_used_by.insert(&stream_of(stream));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { return {}; }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    std::lock_guard lock(mutex());
    return {limit(device) - std::min(limit(device), used(device)), limit(device)};
  }

  static void freed(int device, size_t bytes) {
    std::lock_guard lock(mutex());
    used(device) -= bytes;
  }
  void set_limit(int device, size_t bytes) {
    std::lock_guard lock(mutex());
    limit(device) = bytes;
    peak(device) = used(device);
  }
  size_t most_used(int device) {
    std::lock_guard lock(mutex());
    return peak(device);
  }

 private:
  struct Waiting {
    Block* block;
    std::vector<EventRef> events;
  };

  /// Blocks that other streams are past.
  static void collect() {
    for (size_t i = waiting().size(); i-- > 0;) {
      const auto& events = waiting()[i].events;
      if (!std::all_of(events.begin(), events.end(), [](auto& e) { return e->is_done(); }))
        continue;
      keep(waiting()[i].block);
      waiting().erase(waiting().begin() + i);
    }
  }

  /// From the system.
  static void* make(int device, size_t size) {
    if (used(device) + size > limit(device))
      throw c10::OutOfMemoryError(
          {__func__, __FILE__, __LINE__},
          "CUDA out of memory. Tried to allocate " + std::to_string(size) + " bytes.");
    used(device) += size;
    peak(device) = std::max(peak(device), used(device));
    void* const data = std::malloc(size);
    std::memset(data, 0xfb, size);
    return data;
  }

  Block* take(StreamThread& stream, size_t size) {
    CaptureRef capture = stream.capture();
    if (own_capture && own_capture != capture) own_capture->refuse("memory for another stream");
    std::lock_guard lock(mutex());
    if (capture) {
      void* data = capture->take(size);
      if (!data) data = make(stream.device(), size);
      return new Block{data, size, &stream, {}, std::move(capture)};
    }
    collect();
    auto& kept = free_blocks()[{&stream, size}];
    if (kept.empty()) return new Block{make(stream.device(), size), size, &stream, {}, nullptr};
    Block* block = kept.back();
    kept.pop_back();
    return block;
  }

  static void keep(Block* block) {
    block->also_used_by.clear();
    block->stream->enqueue([block] { std::memset(block->data, 0xfb, block->size); });
    free_blocks()[{block->stream, block->size}].push_back(block);
  }

  /// Of a graph: what has been freed is overwritten at that place of the graph.
  static void give_back_to_pool(Block* block) {
    if (block->stream->capture() == block->pool) {
      const auto poison = [data = block->data, size = block->size] {
        std::memset(data, 0xfb, size);
      };
      std::lock_guard lock(block->pool->mutex);
      block->pool->work.push_back({poison, /*kernel=*/false});
    }
    block->pool->give_back(block->data, block->size);
    delete block;  // (perhaps the last that holds the pool)
  }

  static void give_back(void* context) {
    Block* block = static_cast<Block*>(context);
    if (block->pool) return give_back_to_pool(block);
    std::lock_guard lock(mutex());
    if (block->also_used_by.empty()) return keep(block);
    Waiting waits{block, {}};
    for (StreamThread* stream : block->also_used_by) {
      waits.events.push_back(std::make_shared<Event>());
      record_event(waits.events.back(), *stream);
    }
    waiting().push_back(std::move(waits));
  }

  static size_t& limit(int device) {
    static std::array<size_t, kDevices> bytes{size_t(1) << 40, size_t(1) << 40};
    return bytes[device];
  }
  static size_t& used(int device) {
    static std::array<size_t, kDevices> bytes{};
    return bytes[device];
  }
  static size_t& peak(int device) {
    static std::array<size_t, kDevices> bytes{};
    return bytes[device];
  }
  static std::mutex& mutex() {
    static auto* const made = new std::mutex;
    return *made;
  }
  static std::map<std::pair<StreamThread*, size_t>, std::vector<Block*>>& free_blocks() {
    static auto* const made = new std::map<std::pair<StreamThread*, size_t>, std::vector<Block*>>;
    return *made;
  }
  static std::vector<Waiting>& waiting() {
    static auto* const made = new std::vector<Waiting>;
    return *made;
  }
};

DeviceMemory device_memory;
C10_REGISTER_GUARD_IMPL(CUDA, Guard)
const bool allocator_registered = [] {
  Capture::freed = &DeviceMemory::freed;
  c10::SetAllocator(c10::kCUDA, &device_memory, 1);
  return true;
}();

void Guard::recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const {
  device_memory.recordStream(data, stream);
}

/// Memory that a copy may read or write after the call that launched it.
class PinnedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    void* data = std::malloc(size + 1);
    std::lock_guard lock(mutex_);
    ranges_[static_cast<char*>(data)] = size;
    return {data, data, &give_back, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t count) const override {
    std::memcpy(to, from, count);
  }
  bool has(const void* data) {
    std::lock_guard lock(mutex_);
    auto it = ranges_.upper_bound(static_cast<char*>(const_cast<void*>(data)));
    if (it == ranges_.begin()) return false;
    --it;
    return static_cast<const char*>(data) <= it->first + it->second;
  }

 private:
  static void give_back(void* data);
  std::mutex mutex_;
  std::map<char*, size_t> ranges_;
};
PinnedMemory& pinned_memory() {
  static auto* const made = new PinnedMemory;
  return *made;
}
void PinnedMemory::give_back(void* data) {
  {
    std::lock_guard lock(pinned_memory().mutex_);
    const auto range = pinned_memory().ranges_.find(static_cast<char*>(data));
    std::memset(data, 0xfb, range->second);
    pinned_memory().ranges_.erase(range);
  }
  std::free(data);
}

}  // namespace

namespace at {

struct SimulatedCudaHooks final : CUDAHooksInterface {
  explicit SimulatedCudaHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  bool isPinnedPtr(const void* data) const override { return pinned_memory().has(data); }
  Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory(); }
  Device getDeviceFromPtr(void*) const override { return {kCUDA, 0}; }
  Allocator* getCUDADeviceAllocator() const override { return &device_memory; }
  DeviceIndex current_device() const override { return DeviceIndex(::current_device); }
  DeviceIndex getCurrentDevice() const override { return DeviceIndex(::current_device); }
  DeviceIndex deviceCount() const override { return kDevices; }
  int getNumGPUs() const override { return kDevices; }
};

}  // namespace at

namespace {

// In the registry under the name that torch asks for.
const bool hooks_registered = [] {
  at::CUDAHooksRegistry()->Register("CUDAHooks", [](at::CUDAHooksArgs args) {
    return std::unique_ptr<at::CUDAHooksInterface>(new at::SimulatedCudaHooks(args));
  });
  return true;
}();

// ---- ops

bool on_device(const at::Tensor& tensor) { return tensor.defined() && tensor.is_cuda(); }

/// The same memory as a CPU tensor.
at::Tensor host_twin(const at::Tensor& tensor) {
  if (!on_device(tensor)) return tensor;
  at::Tensor twin = at::from_blob(const_cast<void*>(tensor.storage().data()),
                                  {int64_t(tensor.storage().nbytes())}, at::kByte);
  at::Tensor typed = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(twin.storage()), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  typed.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(),
                                                     tensor.storage_offset());
  typed._set_conj(tensor.is_conj());
  typed._set_neg(tensor.is_neg());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number())
    typed.unsafeGetTensorImpl()->set_wrapped_number(true);
  return typed;
}

/// As `host_twin`, for a stream's thread: it lets go of its tensors, and of one that has an object
/// of Python it could only with the GIL, which the thread that waits for the stream may hold.
at::Tensor queued_twin(const at::Tensor& tensor) {
  if (on_device(tensor) || !tensor.defined()) return host_twin(tensor);
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(), false));
}

/// The same layout without memory.
at::Tensor meta_twin(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.unsafeGetTensorImpl()->is_wrapped_number()) return tensor;
  const c10::Storage nothing(c10::Storage::use_byte_size_t(), tensor.storage().nbytes(),
                             at::DataPtr(nullptr, c10::kMeta), c10::GetAllocator(c10::kMeta),
                             /*resizable=*/true);
  at::Tensor twin = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(nothing), c10::DispatchKeySet(c10::DispatchKey::Meta), tensor.dtype());
  twin.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(),
                                                    tensor.storage_offset());
  return twin;
}

at::Tensor device_tensor(const c10::Storage& storage, const at::Tensor& like) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA), like.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(),
                                                      like.storage_offset());
  return tensor;
}

at::Tensor new_device_tensor(const at::Tensor& like, int device) {
  const int before = std::exchange(current_device, device);
  const size_t nbytes = like.storage().nbytes();
  c10::Storage storage(c10::Storage::use_byte_size_t(), nbytes, device_memory.allocate(nbytes),
                       &device_memory, true);
  current_device = before;
  return device_tensor(storage, like);
}

template <class F>
c10::IValue map_tensors(const c10::IValue& value, F&& f) {
  if (value.isTensor()) return f(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> mapped;
    for (const at::Tensor& tensor : value.toTensorVector()) mapped.push_back(f(tensor));
    return mapped;
  }
  if (value.isList() && value.toList().elementType()->kind() == c10::TypeKind::OptionalType) {
    c10::List<std::optional<at::Tensor>> mapped;
    for (const c10::IValue& element : value.toListRef())
      mapped.push_back(element.isNone() ? std::nullopt
                                        : std::optional<at::Tensor>(f(element.toTensor())));
    return mapped;
  }
  return value;
}

c10::IValue with_device(const c10::IValue& value, c10::Device device) {
  return value.isDevice() ? c10::IValue(device) : value;
}

int device_of(const torch::jit::Stack& args) {
  int device = -1;
  for (const c10::IValue& arg : args) {
    if (arg.isDevice() && arg.toDevice().is_cuda())
      device = arg.toDevice().has_index() ? arg.toDevice().index() : current_device;
    map_tensors(arg, [&](const at::Tensor& tensor) {
      if (on_device(tensor) && device < 0) device = tensor.device().index();
      return tensor;
    });
  }
  return device < 0 ? current_device : device;
}

/// Kernels run without autograd and without whatever mode the launching thread had.
struct BelowEverything {
  const c10::impl::LocalDispatchKeySet before = c10::impl::tls_local_dispatch_key_set();
  BelowEverything() {
    auto keys = before;
    keys.included_ = c10::DispatchKeySet(c10::DispatchKey::BackendSelect);
    keys.excluded_ =
        c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;
    c10::impl::_force_tls_local_dispatch_key_set(keys);
  }
  ~BelowEverything() { c10::impl::_force_tls_local_dispatch_key_set(before); }
};

const c10::AliasInfo* alias_of(const c10::Argument& arg) { return arg.alias_info(); }
bool is_written(const c10::Argument& arg) { return alias_of(arg) && alias_of(arg)->isWrite(); }

/// The argument that a return is, or views.
int aliased_argument(const c10::FunctionSchema& schema, const c10::Argument& ret) {
  if (!alias_of(ret)) return -1;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::AliasInfo* alias = alias_of(schema.arguments()[i]);
    if (alias && alias->beforeSets() == alias_of(ret)->beforeSets()) return int(i);
  }
  return -1;
}

void resize_storage(const at::Tensor& tensor, size_t nbytes) {
  if (tensor.storage().nbytes() >= nbytes) return;
  const int before = std::exchange(current_device, tensor.device().index());
  c10::Storage storage = tensor.storage();
  storage.set_data_ptr_noswap(device_memory.allocate(nbytes));
  storage.set_nbytes(nbytes);
  current_device = before;
}

/// Results whose shapes only the values tell: the device is waited for, as CUDA's kernels do.
void run_with_host(const c10::OperatorHandle& op, torch::jit::Stack args, int device,
                   torch::jit::Stack* stack) {
  may_wait();
  stream_of(device).wait();
  check(device);
  const BelowEverything below;
  torch::jit::Stack results;
  for (const c10::IValue& arg : args)
    results.push_back(with_device(map_tensors(arg, host_twin), c10::kCPU));
  op.callBoxed(results);
  for (const c10::IValue& result : results)
    stack->push_back(map_tensors(result, [&](const at::Tensor& tensor) {
      if (!tensor.defined() || tensor.is_cuda()) return tensor;
      at::Tensor made = new_device_tensor(tensor, device);
      stream_of(device).wait();  // the memory may have been freed just now
      host_twin(made).copy_(tensor);
      return made;
    }));
}

/// x[mask]
bool indexes_by_mask(const torch::jit::Stack& args) {
  for (const c10::IValue& arg : args) {
    if (!arg.isList() || arg.toList().elementType()->kind() != c10::TypeKind::OptionalType)
      continue;
    for (const c10::IValue& index : arg.toListRef())
      if (index.isTensor() && index.toTensor().scalar_type() == at::kBool) return true;
  }
  return false;
}

bool returns_only_tensors(const c10::FunctionSchema& schema) {
  for (const c10::Argument& ret : schema.returns())
    if (!ret.type()->isSubtypeOf(*c10::TensorType::get()) &&
        !ret.type()->isSubtypeOf(*c10::ListType::ofTensors()))
      return false;
  return true;
}

void run_op(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const torch::jit::Stack args = torch::jit::pop(*stack, schema.arguments().size());
  const int device = device_of(args);
  check(device);
  if (!returns_only_tensors(schema) || op.hasTag(at::Tag::dynamic_output_shape) ||
      op.hasTag(at::Tag::data_dependent_output) || indexes_by_mask(args))
    return run_with_host(op, args, device, stack);

  torch::jit::Stack metas;
  for (const c10::IValue& arg : args)
    metas.push_back(with_device(map_tensors(arg, meta_twin), c10::kMeta));
  const torch::jit::Stack meta_args = metas;
  try {
    const BelowEverything below;
    op.callBoxed(metas);
  } catch (const c10::NotImplementedError&) {
    return run_with_host(op, args, device, stack);
  }

  // Written arguments take the metadata that they have afterwards.
  for (size_t i = 0; i < args.size(); ++i) {
    if (!is_written(schema.arguments()[i]) || !args[i].isTensor()) continue;
    const at::Tensor &real = args[i].toTensor(), &meta = meta_args[i].toTensor();
    if (!on_device(real)) continue;
    resize_storage(real, meta.storage().nbytes());
    real.unsafeGetTensorImpl()->set_sizes_and_strides(meta.sizes(), meta.strides(),
                                                      meta.storage_offset());
  }
  // What it returns: an argument, a view of one, or new tensors.
  torch::jit::Stack results;
  std::vector<at::Tensor> made;
  bool only_views = !schema.returns().empty();
  for (size_t r = 0; r < schema.returns().size(); ++r) {
    const c10::Argument& ret = schema.returns()[r];
    const int aliased = aliased_argument(schema, ret);
    if (aliased >= 0 && is_written(schema.arguments()[aliased])) {
      results.push_back(args[aliased]);
      only_views = false;
    } else if (aliased >= 0) {
      const c10::Storage storage = args[aliased].toTensor().storage();
      results.push_back(
          map_tensors(metas[r], [&](const at::Tensor& m) { return device_tensor(storage, m); }));
    } else {
      only_views = false;
      results.push_back(map_tensors(metas[r], [&](const at::Tensor& m) {
        if (!m.defined()) return m;
        made.push_back(new_device_tensor(m, device));
        return made.back();
      }));
    }
  }
  if (!only_views) {
    torch::jit::Stack hosts;
    for (const c10::IValue& arg : args)
      hosts.push_back(with_device(map_tensors(arg, queued_twin), c10::kCPU));
    std::vector<at::Tensor> twins;
    for (const at::Tensor& tensor : made) twins.push_back(host_twin(tensor));
    launch(stream_of(device), [op, hosts, twins, schema] {
      const BelowEverything below;
      torch::jit::Stack stack = hosts;  // (a graph runs it many times)
      op.callBoxed(stack);
      size_t next = 0;
      for (size_t r = 0; r < stack.size(); ++r) {
        if (aliased_argument(schema, schema.returns()[r]) >= 0) continue;
        map_tensors(stack[r], [&](const at::Tensor& tensor) {
          if (tensor.defined()) at::Tensor(twins[next++]).copy_(tensor);
          return tensor;
        });
      }
    });
  }
  for (c10::IValue& result : results) stack->push_back(std::move(result));
}

at::Tensor empty_strided(c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  const int index = device && device->has_index() ? device->index() : current_device;
  check(index);
  const at::Tensor meta =
      at::empty_strided(C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides),
                        at::TensorOptions()
                            .dtype(dtype.value_or(c10::get_default_dtype_as_scalartype()))
                            .device(c10::kMeta));
  return new_device_tensor(meta, index);
}

at::Tensor empty(c10::SymIntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> layout, std::optional<at::Device> device,
                 std::optional<bool> pin, std::optional<at::MemoryFormat> format) {
  auto ints = C10_AS_INTARRAYREF_SLOW(sizes);
  std::vector<int64_t> strides(ints.size(), 1);
  for (int i = int(ints.size()) - 2; i >= 0; --i)
    strides[i] = strides[i + 1] * std::max<int64_t>(ints[i + 1], 1);
  if (format == at::MemoryFormat::ChannelsLast) strides = c10::get_channels_last_strides_2d(ints);
  return empty_strided(sizes, c10::fromIntArrayRefSlow(strides), dtype, layout, device, pin);
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  const bool up = on_device(self), from_device = on_device(source);
  const int device = (up ? self : source).device().index();
  check(device);
  const auto is_pinned = [](const at::Tensor& t) { return pinned_memory().has(t.data_ptr()); };
  const at::Tensor to = queued_twin(self);
  at::Tensor from = queued_twin(source);
  // (What is not pinned is read before the call returns.)
  const bool later = non_blocking && (up || is_pinned(to));
  const BelowEverything below;
  if (own_capture && (!later || !is_pinned(up ? from : to)) && !(up && from_device))
    own_capture->refuse("a copy of memory that is not pinned");
  if (up && !from_device && !is_pinned(from)) from = from.clone();
  launch(stream_of(device), [to, from] {
    const BelowEverything below;
    to.copy_(from);
  });
  if (!later && !(up && from_device)) {
    stream_of(device).wait();
    check(device);
  }
  return self;
}

const at::Tensor& resize_(const at::Tensor& self, c10::SymIntArrayRef sizes,
                          std::optional<at::MemoryFormat>) {
  auto ints = C10_AS_INTARRAYREF_SLOW(sizes);
  int64_t numel = 1;
  for (int64_t n : ints) numel *= n;
  resize_storage(self, (self.storage_offset() + numel) * self.element_size());
  self.unsafeGetTensorImpl()->set_sizes_contiguous(ints);
  return self;
}

/// An op of CUDA that the CPU has not: of one trailing dim.
std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& dy, const at::Tensor& x,
                                                     at::IntArrayRef /*shape*/,
                                                     const at::Tensor& rstd,
                                                     const std::optional<at::Tensor>& weight,
                                                     std::array<bool, 2> wanted) {
  const at::Tensor normal = at::mul(x, rstd);
  const at::Tensor g = weight ? at::mul(dy, *weight) : dy;
  at::Tensor dx, dweight;
  if (wanted[0]) {
    const at::Tensor mean = at::mean(at::mul(g, normal), {-1}, /*keepdim=*/true);
    dx = at::mul(rstd, at::sub(g, at::mul(normal, mean)));
  }
  if (wanted[1]) dweight = at::mul(dy, normal).flatten(0, -2).sum(0);
  return {dx, dweight};
}

}  // namespace

/// For driver.cpp: a kernel on a stream (null: the device's default one). Returns the driver's
/// error.
int simulated_cuda_launch(int device, void* stream, std::function<void()> kernel) {
  if (state_of(device).lost) return kDeviceAssert;
  StreamThread& on = stream ? *static_cast<StreamThread*>(stream) : *state_of(device).streams[0];
  if (on.device() != device) return kInvalidHandle;
  try {
    launch(on, std::move(kernel));
  } catch (const c10::AcceleratorError& error) {
    return error.get_error_code();
  }
  return 0;
}

namespace {

// ---- graphs

std::map<int64_t, CaptureRef>& graphs() {
  static auto* const made = new std::map<int64_t, CaptureRef>;
  return *made;
}

std::mutex graphs_mutex;

CaptureRef graph_of(int64_t id) {
  std::lock_guard lock(graphs_mutex);
  return graphs().at(id);
}

/// Of the calling thread's stream. (All of these are called on the thread that began it.)
int64_t begin_graph() {
  StreamThread& stream = stream_of(current_device);
  check(current_device);
  if (current_stream[current_device] == 0) Capture::fail(900, "the default stream is not captured");
  if (stream.capture() || own_capture) Capture::fail(900, "it is being captured already");
  own_capture = std::make_shared<Capture>(current_device);
  stream.set_capture(own_capture);
  std::lock_guard lock(graphs_mutex);
  static int64_t last = 0;
  graphs()[++last] = own_capture;
  return last;
}

void end_graph(int64_t id) {
  const CaptureRef capture = graph_of(id);
  StreamThread& stream = stream_of(current_device);
  if (stream.capture() != capture || own_capture != capture)
    Capture::fail(900, "a capture ends on another stream, or thread, than it began on");
  stream.set_capture(nullptr);
  own_capture = nullptr;
  if (captures_to_fail > 0) {
    --captures_to_fail;
    capture->invalid = "a test wants it to fail";
  }
  if (!capture->invalid.empty()) Capture::fail(901, "invalid capture: " + capture->invalid);
}

void drop_graph(int64_t id) {
  CaptureRef dropped;
  std::lock_guard lock(graphs_mutex);
  if (const auto found = graphs().find(id); found != graphs().end()) {
    dropped = std::move(found->second);
    graphs().erase(found);
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_op>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("copy_", &copy_);
  m.impl("resize_", &resize_);
  m.impl("_fused_rms_norm_backward", &rms_norm_backward);
}

TORCH_LIBRARY(simulated_cuda, m) {
  // How long each kernel takes.
  m.def("set_delay(int us) -> ()", [](int64_t us) { delay_us = us; });
  // Kernels of the device's default stream wait from hold() to let_go(), or those of the others.
  m.def("hold(int device) -> ()", [](int64_t device) { hold_streams(int(device), 0, 1); });
  m.def("hold_others(int device) -> ()",
        [](int64_t device) { hold_streams(int(device), 1, kStreams); });
  m.def("let_go() -> ()", [] {
    held = false;
    held.notify_all();
  });
  // From then on allocations of the device fail beyond so many bytes; its most since then.
  m.def("set_memory(int device, int bytes) -> ()",
        [](int64_t device, int64_t bytes) { device_memory.set_limit(int(device), size_t(bytes)); });
  m.def("most_memory(int device) -> int",
        [](int64_t device) -> int64_t { return int64_t(device_memory.most_used(int(device))); });
  m.def("host_waits() -> int", []() -> int64_t { return host_waits; });
  // The stream that the calling thread has selected, and selecting one (torch.cuda has no build).
  m.def("exchange_stream(int device, int stream) -> int", [](int64_t device, int64_t stream) {
    return int64_t(std::exchange(current_stream[device], int(stream)));
  });
  m.def("stream_waits(int device, int stream, int for_stream) -> ()",
        [](int64_t device, int64_t stream, int64_t for_stream) {
          auto event = std::make_shared<Event>();
          record_event(event, *state_of(int(device)).streams[for_stream]);
          state_of(int(device)).streams[stream]->enqueue([event] { event->wait(1); });
        });
  // How many kernels a stream has been given.
  m.def("launches_on(int device, int stream) -> int",
        [](int64_t device, int64_t stream) -> int64_t {
          return state_of(int(device)).streams[stream]->kernels;
        });
  // What torch.cuda.CUDAGraph calls (device.py).
  m.def("begin_graph() -> int", &begin_graph);
  m.def("end_graph(int graph) -> ()", &end_graph);
  m.def("launch_graph(int graph) -> ()",
        [](int64_t id) { launch(graph_of(id), stream_of(current_device)); });
  m.def("drop_graph(int graph) -> ()", &drop_graph);
  // How many there are, how often one was launched; so many captures from now on are invalid.
  m.def("graphs() -> int", []() -> int64_t {
    std::lock_guard lock(graphs_mutex);
    return int64_t(graphs().size());
  });
  m.def("graph_launches() -> int", []() -> int64_t { return graph_launches; });
  m.def("fail_captures(int count) -> ()", [](int64_t count) { captures_to_fail = count; });
  m.def("finished() -> int", []() -> int64_t { return finished; });
  m.def("launches() -> int", []() -> int64_t { return launches; });
  m.def("synchronize() -> ()", [] {
    for (int d = 0; d < kDevices; ++d) Guard().synchronizeDevice(c10::DeviceIndex(d));
  });
}
