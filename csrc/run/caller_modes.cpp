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

/// By address. Each node of a custom op says anew what it has, so what is left of one that is gone
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
    c10::impl::tls_set_dispatch_key_excluded(kKeys[i], !modes.autocast.has(kKeys[i]));
    at::autocast::set_autocast_dtype(kDevices[i], modes.casts_to[i]);
  }
  c10::GradMode::set_enabled(modes.grad);
}

}  // namespace

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

void keep_modes(const Node* node) {
  const CallerModes modes = CallerModes::of_this_thread();
  std::lock_guard lock(kept().mutex);
  if (modes.autocast.empty() && modes.grad)
    kept().modes.erase(node);
  else
    kept().modes[node] = modes;
}

std::optional<CallerModes> kept_modes(const Node* node) {
  std::lock_guard lock(kept().mutex);
  const auto found = kept().modes.find(node);
  if (found == kept().modes.end()) return std::nullopt;
  return found->second;
}

InCustomKernel::InCustomKernel(const std::optional<CallerModes>& modes) {
  ++kernels;
  if (!modes) return;
  before_ = CallerModes::of_this_thread();
  caches_ = at::autocast::is_autocast_cache_enabled();
  set(*modes);
  // (It is emptied when a block of autocast ends, which is on another thread.)
  at::autocast::set_autocast_cache_enabled(false);
}

InCustomKernel::~InCustomKernel() {
  --kernels;
  if (!before_) return;
  set(*before_);
  at::autocast::set_autocast_cache_enabled(caches_);
}

bool InCustomKernel::active() { return kernels != 0; }

}  // namespace lazyeng::run
