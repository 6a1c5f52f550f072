// csrc/run/caller_modes.cpp: reading and setting them on the calling thread.
#include "csrc/run/caller_modes.h"

#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <mutex>
#include <unordered_map>

namespace lazyeng::run {
namespace {

constexpr std::array<c10::DispatchKey, 2> kKeys = {c10::DispatchKey::AutocastCPU,
                                                   c10::DispatchKey::AutocastCUDA};
constexpr std::array<c10::DeviceType, 2> kDevices = {c10::kCPU, c10::kCUDA};

/// By address. Each node that keeps some says anew what it has, so what is left of one that is gone
/// does no harm.
struct Kept {
  std::mutex mutex;
  std::unordered_map<const Node*, CallerModes> modes;
};

Kept& kept() {
  static Kept* const made = new Kept;
  return *made;
}

thread_local constinit int kernels = 0;

void set(const CallerModes& modes) {
  for (size_t i = 0; i < kKeys.size(); ++i) {
    c10::impl::tls_set_dispatch_key_excluded(kKeys[i], !modes.casts(i));
    at::autocast::set_autocast_dtype(kDevices[i], modes.casts_to[i]);
  }
  c10::GradMode::set_enabled(modes.grad);
}

}  // namespace

bool CallerModes::casts(size_t device) const { return autocast.has(kKeys[device]); }

CallerModes CallerModes::of_this_thread() {
  CallerModes modes;
  for (size_t i = 0; i < kKeys.size(); ++i) {
    if (!c10::impl::tls_is_dispatch_key_excluded(kKeys[i]))
      modes.autocast = modes.autocast.add(kKeys[i]);
    modes.casts_to[i] = at::autocast::get_autocast_dtype(kDevices[i]);
  }
  modes.grad = c10::GradMode::is_enabled();
  return modes;
}

bool keep_modes(const Node* node) {
  const CallerModes modes = CallerModes::of_this_thread();
  if (modes.autocast.empty() && modes.grad) return false;
  std::lock_guard lock(kept().mutex);
  kept().modes[node] = modes;
  return true;
}

CallerModes kept_modes(const Node* node) {
  std::lock_guard lock(kept().mutex);
  return kept().modes.at(node);
}

WithModes::WithModes(const CallerModes& modes)
    : before_(CallerModes::of_this_thread()), caches_(at::autocast::is_autocast_cache_enabled()) {
  set(modes);
  // (It is emptied when a block of autocast ends, which is on another thread.)
  at::autocast::set_autocast_cache_enabled(false);
}

WithModes::~WithModes() {
  set(before_);
  at::autocast::set_autocast_cache_enabled(caches_);
}

InCustomKernel::InCustomKernel() { ++kernels; }

InCustomKernel::~InCustomKernel() { --kernels; }

bool InCustomKernel::active() { return kernels != 0; }

}  // namespace lazyeng::run
