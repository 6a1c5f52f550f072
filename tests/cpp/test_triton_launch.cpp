// tests/cpp/test_triton_launch.cpp: what reaches the driver, against a library that stands in for
// it. Nothing here has run on a GPU.
#include <dlfcn.h>

#include "csrc/fuse/triton_launch.h"
#include "tests/cpp/check.h"

using namespace lazyeng::fuse;
using namespace lazyeng::test;

namespace {

const char* library() { return std::getenv("FAKE_CUDA"); }

/// The stand-in, opened a second time for what only tests call.
struct Fake {
  Fake() : handle(dlopen(library(), RTLD_NOW)) {
    check(handle, "FAKE_CUDA names a library");
    reset = reinterpret_cast<decltype(reset)>(dlsym(handle, "fake_reset"));
    sizes = reinterpret_cast<decltype(sizes)>(dlsym(handle, "fake_sizes"));
    calls = reinterpret_cast<decltype(calls)>(dlsym(handle, "fake_calls"));
    reset("", 0);
    sizes(nullptr, 0);
  }
  ~Fake() { dlclose(handle); }
  void* handle;
  void (*reset)(const char* call, int code);
  void (*sizes)(const size_t* first, size_t n);
  const char* (*calls)();
};

KernelImage image(uint32_t shared = 0) { return {"group_kernel", shared, 4, "\x7f\x45LF..."}; }

template <class F>
std::string error_of(F f) {
  try {
    f();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "no error";
}

void a_kernel_is_loaded_and_unloaded() {
  Fake fake;
  const CudaDriver driver(library());
  { const TritonKernel kernel(driver, 1, image()); }
  same(std::string(fake.calls()),
       std::string("cuInit 0\n"
                   "cuDeviceGet 1\n"
                   "cuDevicePrimaryCtxRetain 101\n"
                   "cuCtxPushCurrent 0x10\n"
                   "cuModuleLoadData ELF\n"
                   "cuModuleGetFunction 0x20 group_kernel\n"
                   "cuCtxPopCurrent\n"
                   "cuCtxPushCurrent 0x10\n"
                   "cuModuleUnload 0x20\n"
                   "cuCtxPopCurrent\n"
                   "cuDevicePrimaryCtxRelease 101\n"),
       "calls");
}

void a_device_says_what_it_is() {
  Fake fake;
  const CudaDriver driver(library());
  same(driver.architecture(1), 86, "architecture");
  check(std::strstr(fake.calls(), "cuDeviceGetAttribute 76 101\n"), fake.calls());
}

void much_shared_memory_is_asked_for() {
  Fake fake;
  const CudaDriver driver(library());
  const TritonKernel little(driver, 0, image(48 << 10));
  check(!std::strstr(fake.calls(), "cuFuncSetAttribute"), "48 KiB need no asking");
  const TritonKernel much(driver, 0, image((48 << 10) + 16));
  check(std::strstr(fake.calls(), "cuFuncSetAttribute 0x30 8 49168\n"), fake.calls());
}

void arguments_take_the_bytes_of_their_types() {
  Fake fake;
  const CudaDriver driver(library());
  const TritonKernel kernel(driver, 0, image(512));
  LaunchArguments arguments;
  arguments.add(reinterpret_cast<void*>(0x1122334455667788));
  arguments.add(int32_t{-2});
  arguments.add(int64_t{1} << 40);
  arguments.add(1.5f);
  arguments.add(-2.0);
  arguments.add(uint16_t{0x3e00});  // 1.5 in float16
  arguments.add(uint16_t{0x3fc0});  // 1.5 in bfloat16
  same(arguments.size(), size_t{7}, "arguments");
  const size_t sizes[] = {8, 4, 8, 4, 8, 2, 2, 8, 8};
  fake.reset("", 0);
  fake.sizes(sizes, std::size(sizes));
  kernel.launch({33, 2, 1}, reinterpret_cast<void*>(0x77), arguments);
  same(std::string(fake.calls()),
       std::string("cuCtxPushCurrent 0x10\n"
                   "cuLaunchKernel 0x30 (33 2 1) (128 1 1) 512 0x77 \n"
                   "  8877665544332211\n"
                   "  feffffff\n"
                   "  0000000000010000\n"
                   "  0000c03f\n"
                   "  00000000000000c0\n"
                   "  003e\n"
                   "  c03f\n"
                   "  0000000000000000\n"  // scratch memory, and the profiler's
                   "  0000000000000000\n"
                   "cuCtxPopCurrent\n"),
       "calls");
}

void errors_say_what_the_driver_says() {
  Fake fake;
  const CudaDriver driver(library());
  const TritonKernel kernel(driver, 0, image());
  LaunchArguments arguments;
  fake.reset("cuLaunchKernel", 700);
  same(error_of([&] { kernel.launch({1, 1, 1}, nullptr, arguments); }),
       std::string("[cuLaunchKernel] failed, got CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal "
                   "memory access was encountered"),
       "error");
  check(std::strstr(fake.calls(), "cuCtxPopCurrent"), "the thread's context is as before");
  fake.reset("cuLaunchKernel", 12345);
  same(error_of([&] { kernel.launch({1, 1, 1}, nullptr, arguments); }),
       std::string("[cuLaunchKernel] failed, got an unknown error (12345): no description"),
       "error");
}

void what_was_begun_is_undone() {
  Fake fake;
  const CudaDriver driver(library());
  const auto load = [&] { const TritonKernel kernel(driver, 0, image(1 << 16)); };
  for (const char* call : {"cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent",
                           "cuModuleLoadData", "cuModuleGetFunction", "cuFuncSetAttribute"}) {
    fake.reset(call, 700);
    const std::string error = error_of(load), calls = fake.calls();
    check(error.starts_with("[" + std::string(call) + "] failed"), error);
    const auto count = [&](const char* name) {
      size_t found = 0;
      for (size_t at = calls.find(name); at != std::string::npos; at = calls.find(name, at + 1))
        ++found;
      return found;
    };
    const bool loaded = count("cuModuleGetFunction") > 0;
    const bool retained = count("cuCtxPushCurrent") > 0;
    same(count("cuModuleUnload"), size_t{loaded}, std::string(call) + ": unloaded");
    same(count("cuDevicePrimaryCtxRelease"), size_t{retained}, std::string(call) + ": released");
  }
}

void what_is_no_cubin_never_reaches_the_driver() {
  Fake fake;
  const CudaDriver driver(library());
  KernelImage wrong = image();
  wrong.cubin = "";
  same(error_of([&] { const TritonKernel kernel(driver, 0, wrong); }),
       std::string("[TritonKernel] cubin of group_kernel is no ELF file, got 0 bytes"), "error");
  same(std::string(fake.calls()), std::string(), "calls");
}

void a_missing_driver_is_an_error() {
  const std::string none = error_of([] { CudaDriver("libno_such_driver.so"); });
  check(none.starts_with("[CudaDriver] cannot open the driver, got "), none);
  const std::string other = error_of([] { CudaDriver("libc.so.6"); });
  same(other, std::string("[CudaDriver] libc.so.6 lacks a function, got no cuInit"), "error");
}

}  // namespace

int main(int argc, char** argv) {
  return run_tests(
      argc, argv,
      {{"a kernel is loaded and unloaded", a_kernel_is_loaded_and_unloaded},
       {"a device says what it is", a_device_says_what_it_is},
       {"much shared memory is asked for", much_shared_memory_is_asked_for},
       {"arguments take the bytes of their types", arguments_take_the_bytes_of_their_types},
       {"errors say what the driver says", errors_say_what_the_driver_says},
       {"what was begun is undone", what_was_begun_is_undone},
       {"what is no cubin never reaches the driver", what_is_no_cubin_never_reaches_the_driver},
       {"a missing driver is an error", a_missing_driver_is_an_error}});
}
