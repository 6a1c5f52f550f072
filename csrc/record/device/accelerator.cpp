// csrc/record/device/accelerator.cpp: at::getAccelerator() calls
// c10::is_privateuse1_backend_registered() in another library, so through a slot that the dynamic
// linker has filled in. We put another function there, which says no. Nothing else in that library
// looks through the slot.
#include "csrc/record/device/accelerator.h"

#include <c10/core/DeviceType.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace lazyeng::record {
namespace {

bool not_registered() { return false; }

/// The dynamic section of a loaded library: where its relocations and their symbols stand.
struct Dynamic {
  const ElfW(Sym) * symbols = nullptr;
  const char* names = nullptr;
  const ElfW(Rela) * calls = nullptr;
  size_t num_calls = 0;
};

Dynamic read_dynamic(const dl_phdr_info& library, const ElfW(Phdr) & header) {
  // (Entries that are addresses: the linker of glibc has relocated them, others leave that to us.)
  const auto address = [&](ElfW(Addr) value) {
    return value < library.dlpi_addr ? library.dlpi_addr + value : value;
  };
  Dynamic found;
  const auto* entry = reinterpret_cast<const ElfW(Dyn)*>(library.dlpi_addr + header.p_vaddr);
  for (; entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag == DT_SYMTAB)
      found.symbols = reinterpret_cast<const ElfW(Sym)*>(address(entry->d_un.d_ptr));
    else if (entry->d_tag == DT_STRTAB)
      found.names = reinterpret_cast<const char*>(address(entry->d_un.d_ptr));
    else if (entry->d_tag == DT_JMPREL)
      found.calls = reinterpret_cast<const ElfW(Rela)*>(address(entry->d_un.d_ptr));
    else if (entry->d_tag == DT_PLTRELSZ)
      found.num_calls = entry->d_un.d_val / sizeof(ElfW(Rela));
  }
  return found;
}

struct Search {
  std::string_view library;
  const char* symbol;
  void** slot = nullptr;
};

int look_into(dl_phdr_info* library, size_t, void* data) {
  Search& search = *static_cast<Search*>(data);
  if (!std::string_view(library->dlpi_name).ends_with(search.library)) return 0;
  for (int i = 0; i < library->dlpi_phnum; ++i) {
    if (library->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
    const Dynamic dynamic = read_dynamic(*library, library->dlpi_phdr[i]);
    if (!dynamic.symbols || !dynamic.names || !dynamic.calls) continue;
    for (size_t c = 0; c < dynamic.num_calls; ++c) {
      const ElfW(Rela)& call = dynamic.calls[c];
      const char* name = dynamic.names + dynamic.symbols[ELF64_R_SYM(call.r_info)].st_name;
      if (std::strcmp(name, search.symbol) == 0)
        search.slot = reinterpret_cast<void**>(library->dlpi_addr + call.r_offset);
    }
  }
  return 1;
}

/// Through which the library calls the function; null: not found.
void** call_slot(std::string_view library, const char* symbol) {
  Search search{library, symbol};
  dl_iterate_phdr(look_into, &search);
  return search.slot;
}

bool write_slot(void** slot, void* function) {
  const auto page_size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  void* const page = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(slot) & ~(page_size - 1));
  // (Left writable: slots that are filled in on first use lie on the same page.)
  if (mprotect(page, page_size, PROT_READ | PROT_WRITE) != 0) return false;
  std::atomic_ref(*slot).store(function, std::memory_order_release);
  return true;
}

}  // namespace

// (torch's accelerator is not asked for: the answer takes a call of CUDA's, after which no child of
// a fork can use a GPU; and this runs when torch is imported.)
bool keep_accelerator() {
  if (c10::is_privateuse1_backend_registered()) return true;
  void** slot = call_slot("/libtorch_cpu.so", "_ZN3c1033is_privateuse1_backend_registeredEv");
  return slot && write_slot(slot, reinterpret_cast<void*>(&not_registered));
}

}  // namespace lazyeng::record
