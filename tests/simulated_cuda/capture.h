// tests/simulated_cuda/capture.h: what a stream is given while it is captured: a graph.
//
// Nothing of it runs before the graph is launched, and then as often as that is. Its memory is its
// own: what is freed meanwhile goes to what the capture allocates later, and to nobody else as long
// as the graph lives. What CUDA does not permit during a capture makes it invalid; stricter than
// CUDA, so does whatever the capturing thread does on another stream.
#pragma once

#include <c10/util/Exception.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

struct Capture {
  struct Work {
    std::function<void()> run;
    bool kernel;
  };

  explicit Capture(int device) : device(device) {}
  ~Capture() {
    for (auto& [size, blocks] : free)
      for (void* data : blocks) {
        std::free(data);
        freed(device, size);
      }
  }

  /// Throws what a forbidden call does; the capture does not become a graph.
  [[noreturn]] void refuse(const char* why) {
    std::lock_guard lock(mutex);
    if (invalid.empty()) invalid = why;
    fail(900, std::string("operation not permitted when stream is capturing: ") + why);
  }
  void add(Work next) {
    std::lock_guard lock(mutex);
    if (!invalid.empty()) fail(901, "operation failed due to a previous error during capture");
    work.push_back(std::move(next));
  }

  /// Null: it has none of that size.
  void* take(size_t size) {
    std::lock_guard lock(mutex);
    auto& kept = free[size];
    if (kept.empty()) return nullptr;
    void* const data = kept.back();
    kept.pop_back();
    return data;
  }
  void give_back(void* data, size_t size) {
    std::lock_guard lock(mutex);
    free[size].push_back(data);
  }

  [[noreturn]] static void fail(int code, const std::string& why) {
    throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, code, "CUDA error: " + why);
  }
  /// Memory of the device was given back to the system.
  static inline void (*freed)(int device, size_t bytes) = nullptr;

  const int device;
  std::mutex mutex;
  std::vector<Work> work;
  std::string invalid;  // why it cannot become a graph
  std::map<size_t, std::vector<void*>> free;
};
