// csrc/run/caller/caller_modes.cpp: reading and setting them on the calling thread.
#include "csrc/run/caller/caller_modes.h"

#include <ATen/autocast_mode.h>
#include <Python.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

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

thread_local constinit const Node* custom_node = nullptr;

/// That are within kernels of custom ops, by the number that Python knows them by; once for each.
struct KernelThreads {
  std::mutex mutex;
  std::vector<unsigned long> threads;
};

KernelThreads& kernel_threads() {
  static auto* const made = new KernelThreads;
  return *made;
}

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

InCustomKernel::InCustomKernel(const Node& node) : outer_(std::exchange(custom_node, &node)) {
  std::lock_guard lock(kernel_threads().mutex);
  kernel_threads().threads.push_back(PyThread_get_thread_ident());
}

InCustomKernel::~InCustomKernel() {
  custom_node = outer_;
  std::vector<unsigned long>& threads = kernel_threads().threads;
  std::lock_guard lock(kernel_threads().mutex);
  threads.erase(std::find(threads.begin(), threads.end(), PyThread_get_thread_ident()));
}

void InCustomKernel::interrupt_all() {
  std::lock_guard lock(kernel_threads().mutex);
  for (const unsigned long thread : kernel_threads().threads)
    PyThreadState_SetAsyncExc(thread, PyExc_KeyboardInterrupt);
}

const Node* InCustomKernel::node() { return custom_node; }

}  // namespace lazyeng::run
