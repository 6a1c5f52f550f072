// tests/support/failing_memory.c: preloaded, it lets allocations of torch's CPU allocator fail:
// calls of posix_memalign from libc10. (oneDNN calls it for itself too, and does not live
// through a failure of that, in eager PyTorch either.)
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static atomic_long seen, failed;
static atomic_long first, end;  // those numbered first to end - 1 fail; the first one has number 1

// From now on calls are counted anew, and `many` of them fail, from number `from` on. 0: none.
void fail_allocations(long from, long many) {
  atomic_store(&first, 0);
  atomic_store(&end, 0);
  atomic_store(&seen, 0);
  atomic_store(&failed, 0);
  atomic_store(&end, from + many);
  atomic_store(&first, from);
}

long seen_allocations(void) { return atomic_load(&seen); }
long failed_allocations(void) { return atomic_load(&failed); }

static int is_torchs(const void *caller) {
  Dl_info info;
  return dladdr(caller, &info) && info.dli_fname && strstr(info.dli_fname, "libc10.so");
}

int posix_memalign(void **memory, size_t alignment, size_t size) {
  static int (*real)(void **, size_t, size_t);
  if (!real) real = (int (*)(void **, size_t, size_t))dlsym(RTLD_NEXT, "posix_memalign");
  const long from = atomic_load(&first);
  if (from == 0 || !is_torchs(__builtin_return_address(0))) return real(memory, alignment, size);
  const long number = atomic_fetch_add(&seen, 1) + 1;
  if (number >= from && number < atomic_load(&end)) {
    atomic_fetch_add(&failed, 1);
    return ENOMEM;
  }
  return real(memory, alignment, size);
}
