// tests/support/failing_new.cpp: preloaded, it lets allocations of lazyeng's own C++ code fail:
// calls of operator new from lazyeng._C, not those from torch. With FAILING_NEW_TRACE set it
// tells from where.
#include <execinfo.h>
#include <link.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {

std::atomic<long> seen{0}, failed{0};
// Those numbered first to end - 1 fail, of them each `step`-th; the first one has number 1.
std::atomic<long> first{0}, end{0}, step{1};

/// What the handler has given back serves these, and is there again when they are freed.
std::atomic<long> given_back{0}, in_use{0};
constexpr long kPiece = 64 << 10;

/// Where lazyeng._C lies. (dladdr takes long in libraries of torch's size.)
std::atomic<std::uintptr_t> begin_of_ours{0}, end_of_ours{0};

int note_if_ours(dl_phdr_info* info, size_t, void*) {
  if (!strstr(info->dlpi_name, "/lazyeng/_C.")) return 0;
  std::uintptr_t last = 0;
  for (int i = 0; i < info->dlpi_phnum; ++i)
    if (info->dlpi_phdr[i].p_type == PT_LOAD)
      last =
          std::max<std::uintptr_t>(last, info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz);
  begin_of_ours.store(info->dlpi_addr);
  end_of_ours.store(info->dlpi_addr + last);
  return 1;
}

bool is_ours(const void* caller) {
  const auto address = reinterpret_cast<std::uintptr_t>(caller);
  return address >= begin_of_ours.load(std::memory_order_relaxed) &&
         address < end_of_ours.load(std::memory_order_relaxed);
}

bool fails(const void* caller) {
  const long from = first.load(std::memory_order_relaxed);
  if (from == 0 || !is_ours(caller)) return false;
  const long number = seen.fetch_add(1) + 1;
  if (number < from || number >= end.load() || (number - from) % step.load() != 0) return false;
  failed.fetch_add(1);
  return true;
}

void* allocate(std::size_t size, std::size_t alignment) noexcept {
  if (alignment <= alignof(std::max_align_t)) return malloc(size ? size : 1);
  void* memory = nullptr;
  return posix_memalign(&memory, alignment, size ? size : 1) == 0 ? memory : nullptr;
}

bool takes_given_back(std::size_t size) {
  const long needed = static_cast<long>(size) + 16;
  if (given_back.fetch_sub(needed) < needed) {
    given_back.fetch_add(needed);
    return false;
  }
  in_use.fetch_add(needed);
  return true;
}

void release(void* memory) noexcept {
  if (memory && in_use.load(std::memory_order_relaxed) > 0) {
    const long size = static_cast<long>(malloc_usable_size(memory)) + 16;
    if (size < kPiece && in_use.fetch_sub(size) > 0) given_back.fetch_add(size);
  }
  free(memory);
}

void tell_from_where() {
  if (!getenv("FAILING_NEW_TRACE")) return;
  void* frames[24];
  backtrace_symbols_fd(frames, backtrace(frames, 24), 2);
}

/// As the standard says: the handler may find memory; without one the allocation fails.
void* checked(std::size_t size, std::size_t alignment, const void* caller) {
  if (fails(caller))
    while (!takes_given_back(size)) {
      const std::new_handler handler = std::get_new_handler();
      if (!handler) throw std::bad_alloc();
      try {
        handler();
      } catch (...) {
        tell_from_where();
        throw;
      }
      given_back.fetch_add(kPiece);
    }
  void* const memory = allocate(size, alignment);
  if (!memory) throw std::bad_alloc();
  return memory;
}

}  // namespace

extern "C" {
/// From now on calls are counted anew, and `many` of them fail from number `from` on, one in every
/// `every`. 0: none.
void fail_new(long from, long many, long every) {
  dl_iterate_phdr(&note_if_ours, nullptr);
  first.store(0);
  end.store(0);
  seen.store(0);
  failed.store(0);
  given_back.store(0);
  in_use.store(0);
  step.store(every);
  end.store(from + many);
  first.store(from);
}
long seen_new() { return seen.load(); }
long failed_new() { return failed.load(); }
}

#define CALLER __builtin_return_address(0)

void* operator new(std::size_t size) { return checked(size, 1, CALLER); }
void* operator new[](std::size_t size) { return checked(size, 1, CALLER); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return checked(size, static_cast<std::size_t>(alignment), CALLER);
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return checked(size, static_cast<std::size_t>(alignment), CALLER);
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return fails(CALLER) ? nullptr : allocate(size, 1);
}
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return fails(CALLER) ? nullptr : allocate(size, 1);
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
