// csrc/run/memory/cpu_allocator.cpp: which allocator a request goes to, and whose memory is given
// back.
#include "csrc/run/memory/cpu_allocator.h"

#include <c10/core/CPUAllocator.h>

#include <utility>

#include "csrc/run/memory/buffers.h"

namespace lazyeng::run {
namespace {

thread_local constinit bool from_pool = false;
thread_local constinit bool in_block = false;

/// Memory that another allocator of this process may have made (oneDNN keeps some from before).
void give_back(void* memory) {
  if (!take_back_buffer(memory)) c10::GetDefaultCPUAllocator()->raw_deallocate(memory);
}

/// For a thread of the program. What the pool keeps is nobody's: it gives way.
at::DataPtr allocate_outside(size_t nbytes) {
  try {
    return c10::GetDefaultCPUAllocator()->allocate(nbytes);
  } catch (...) {
    if (buffer_stats().kept == 0) throw;
    empty_buffer_pool();
  }
  return c10::GetDefaultCPUAllocator()->allocate(nbytes);
}

struct CpuAllocator final : c10::Allocator {
  at::DataPtr allocate(size_t nbytes) override {
    if (from_pool) return allocate_buffer(nbytes);
    return in_block && is_large(nbytes) ? allocate_large_buffer(nbytes, Whose::program)
                                        : allocate_outside(nbytes);
  }
  at::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* dest, const void* src, size_t count) const override {
    c10::GetDefaultCPUAllocator()->copy_data(dest, src, count);
  }
};

CpuAllocator* const instance = new CpuAllocator;  // (threads may outlive statics)

}  // namespace

void install_cpu_allocator() {
  if (c10::GetCPUAllocator() == c10::GetDefaultCPUAllocator()) c10::SetCPUAllocator(instance);
}

bool is_usual_cpu_allocator(const c10::Allocator* allocator) {
  return allocator == instance || allocator == c10::GetDefaultCPUAllocator();
}

bool allocate_from_pool(bool yes) { return std::exchange(from_pool, yes); }

void allocate_in_block(bool inside) { in_block = inside; }

}  // namespace lazyeng::run
