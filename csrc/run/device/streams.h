// csrc/run/device/streams.h: which streams of a device use a storage, and what has to wait for
// what.
//
// An op of a device is complete when it is launched. On one stream the order of the launches does
// the rest; what is launched on another stream has to wait, on the device, for what was launched
// before: each StorageVar knows the streams that its memory is in use on (StreamUses), and an op
// asks the vars that it reads and writes before it launches (launch_order.h).
//
// Nearly all memory is used on the device's default stream alone: such a var keeps nothing. Any
// other use is kept, with an event that was recorded right after its launch. Who waits for the
// default stream waits for all that it has been given until then: no event for each op.
#pragma once

#include <c10/core/Stream.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <memory>
#include <mutex>

#include "csrc/engine/spin_lock.h"

namespace c10 {
struct Event;
}

namespace lazyeng::run {

using EventRef = std::shared_ptr<const c10::Event>;

/// An event that comes when the stream has done what it has been given until now.
EventRef event_on(const c10::Stream& stream);

c10::Stream default_stream(c10::Device device);
/// That the calling thread has selected. The CPU: 0.
c10::StreamId current_stream_id(c10::Device device);

/// What a stream is to wait for before it goes on.
class StreamWaits {
 public:
  explicit StreamWaits(const c10::Stream& waiting) : waiting_(waiting) {}

  /// For all that the other stream has been given when block() is called.
  void add(const c10::Stream& other);
  void add(EventRef done);
  /// Makes it wait, on the device.
  void block();

 private:
  const c10::Stream waiting_;
  c10::SmallVector<c10::Stream, 2> streams_;
  c10::SmallVector<EventRef, 2> events_;
};

/// Of one storage. Any thread.
class StreamUses {
 public:
  StreamUses() = default;
  StreamUses(const StreamUses&) = delete;
  ~StreamUses();

  /// No other stream than the default one has anything to do with the memory.
  bool only_default() const noexcept { return !uses_.load(std::memory_order_acquire); }
  /// Adds what an op on the stream has to wait for: the writes so far, and if it writes, the reads.
  void add_to(StreamWaits& waits, const c10::Stream& stream, bool writes) const;
  /// An op has been launched there, which waited for what add_to() had added, or has made the
  /// memory. `done`: null on the default stream.
  void note(const c10::Stream& stream, bool writes, EventRef done);

  /// Another stream than the default one has written it last, and was not waited for since.
  bool written_elsewhere() const;
  /// The device has done all that others than the default stream do.
  bool is_over() const;
  /// Becomes what the other one was. Nobody else uses either of them meanwhile.
  void take(StreamUses& other);

 private:
  struct Use {
    c10::Stream stream;
    bool wrote;
    EventRef done;  // null: whatever the stream has been given when somebody asks
  };
  using Uses = c10::SmallVector<Use, 2>;

  Uses copy() const;
  std::unique_ptr<Uses> replace(std::unique_ptr<Uses> uses);

  mutable engine::SpinLock mutex_;
  std::atomic<Uses*> uses_{nullptr};  // owned; null: the default stream, in whatever way
};

}  // namespace lazyeng::run
