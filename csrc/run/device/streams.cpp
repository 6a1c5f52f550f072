// csrc/run/device/streams.cpp: events between streams.
#include "csrc/run/device/streams.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace lazyeng::run {

EventRef event_on(const c10::Stream& stream) {
  auto event = std::make_shared<c10::Event>(stream.device_type());
  event->record(stream);
  return event;
}

c10::Stream default_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getDefaultStream(device);
}

c10::StreamId current_stream_id(c10::Device device) {
  if (device.is_cpu()) return 0;
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).id();
}

void StreamWaits::add(const c10::Stream& other) {
  if (other != waiting_ && std::find(streams_.begin(), streams_.end(), other) == streams_.end())
    streams_.push_back(other);
}

void StreamWaits::add(EventRef done) {
  if (std::find(events_.begin(), events_.end(), done) == events_.end())
    events_.push_back(std::move(done));
}

void StreamWaits::block() {
  for (const c10::Stream& other : streams_) event_on(other)->block(waiting_);
  for (const EventRef& done : events_) done->block(waiting_);
}

StreamUses::~StreamUses() { delete uses_.load(std::memory_order_acquire); }

/// Under the lock. The old ones are for the caller to let go of after it.
std::unique_ptr<StreamUses::Uses> StreamUses::replace(std::unique_ptr<Uses> uses) {
  return std::unique_ptr<Uses>(uses_.exchange(uses.release(), std::memory_order_acq_rel));
}

void StreamUses::add_to(StreamWaits& waits, const c10::Stream& stream, bool writes) const {
  const std::lock_guard lock(mutex_);
  const Uses* const uses = uses_.load(std::memory_order_relaxed);
  if (!uses) return waits.add(default_stream(stream.device()));
  for (const Use& use : *uses) {
    if (use.stream == stream || (!writes && !use.wrote)) continue;
    use.done ? waits.add(use.done) : waits.add(use.stream);
  }
}

void StreamUses::note(const c10::Stream& stream, bool writes, EventRef done) {
  std::unique_ptr<Uses> old;  // let go of after the lock
  const std::lock_guard lock(mutex_);
  Uses* const uses = uses_.load(std::memory_order_relaxed);
  if (!uses && !done) return;
  if (writes) {
    // It has waited for all others.
    old = replace(done ? std::make_unique<Uses>(1, Use{stream, true, std::move(done)}) : nullptr);
    return;
  }
  auto now = uses ? std::make_unique<Uses>(*uses)
                  : std::make_unique<Uses>(1, Use{default_stream(stream.device()), true, nullptr});
  const auto own =
      std::find_if(now->begin(), now->end(), [&](const Use& use) { return use.stream == stream; });
  if (own == now->end())
    now->push_back({stream, false, std::move(done)});
  else
    own->done = std::move(done);  // it comes after the one before
  old = replace(std::move(now));
}

bool StreamUses::written_elsewhere() const {
  const std::lock_guard lock(mutex_);
  const Uses* const uses = uses_.load(std::memory_order_relaxed);
  return uses && std::any_of(uses->begin(), uses->end(),
                             [](const Use& use) { return use.wrote && use.done; });
}

StreamUses::Uses StreamUses::copy() const {
  const std::lock_guard lock(mutex_);
  const Uses* const uses = uses_.load(std::memory_order_relaxed);
  return uses ? *uses : Uses();
}

bool StreamUses::is_over() const {
  const Uses uses = copy();
  if (uses.empty()) return true;
  try {
    const c10::DeviceGuard here(uses.front().stream.device());
    return std::all_of(uses.begin(), uses.end(),
                       [](const Use& use) { return !use.done || use.done->query(); });
  } catch (const c10::Error&) {
    return true;  // the device is lost: whoever uses it tells
  }
}

void StreamUses::take(StreamUses& other) {
  delete uses_.exchange(other.uses_.exchange(nullptr, std::memory_order_acq_rel),
                        std::memory_order_acq_rel);
}

}  // namespace lazyeng::run
