// csrc/run/width.cpp: what an op costs, and whether one core gives its bits.
#include "csrc/run/width.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <dlfcn.h>

#include <cstring>
#include <functional>
#include <limits>

#include "csrc/run/as_engine_thread.h"
#include "csrc/run/ignored_warnings.h"
#include "csrc/run/openmp_team.h"
#include "csrc/run/parts.h"
#include "csrc/run/python_error.h"
#include "csrc/run/slices.h"
#include "csrc/run/spare_cores.h"

namespace lazyeng::run {
namespace {

/// Elements, of all runs of a trial, from which equal bits by chance are out of the question.
constexpr int64_t kEnoughElements = 192;
/// A trial has so many runs at least, as a difference may be at the edges only, and at most.
constexpr uint32_t kFewestRuns = 3, kMostRuns = 24;
/// Of memory for a trial: an op that is soon done has fewer, but may take them from far apart.
constexpr int64_t kMostElements = 1 << 22;
/// A multiple of the elements that any vectorised kernel takes at a time.
constexpr int64_t kVectors = 256;
/// A program that runs an op only so often gains nothing by the trial; nor by that of a large one,
/// which takes milliseconds.
constexpr int kUsesBeforeTrial = 3;
constexpr int kUsesOfLargeBeforeTrial = 20;

// The table of costs, for a core of about 3 GHz.
constexpr double kFlopsPerMicrosecond = 60e3;
constexpr double kBytesPerMicrosecond = 10e3;
constexpr double kLookupsPerMicrosecond = 150;

std::atomic<uint64_t> on_one_core{0};

/// Of the OpenMP library and the MKL that torch has loaded. What is missing, torch does not use.
struct Libraries {
  void (*omp_set)(int) = nullptr;
  int (*mkl_set_local)(int) = nullptr;
};

const Libraries& libraries() {
  static const Libraries found{
      reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads")),
      reinterpret_cast<int (*)(int)>(dlsym(RTLD_DEFAULT, "MKL_Set_Num_Threads_Local"))};
  return found;
}

/// Floating point numbers between 1 and 2, no two alike in a row of some thousands, with all the
/// digits of their dtype: sums of others may have no roundings that could differ.
at::Tensor made_up(const at::Tensor& like, uint32_t seed) {
  int64_t extent = 1;
  for (int64_t d = 0; d < like.dim(); ++d) extent += (like.size(d) - 1) * like.stride(d);
  TORCH_CHECK(extent <= kMostElements, "a view of much more memory than it has elements");
  at::Tensor numbers =
      at::empty({like.numel() == 0 ? 0 : extent}, like.options().dtype(at::kDouble));
  double* const data = numbers.mutable_data_ptr<double>();
  uint64_t state = seed;
  for (int64_t i = 0; i < numbers.numel(); ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    data[i] = 1.0 + static_cast<double>(state >> 12) / (uint64_t{1} << 52);
  }
  return numbers.to(like.scalar_type()).as_strided(like.sizes(), like.strides(), 0);
}

bool is_real(const at::Tensor& tensor) {
  return at::isFloatingType(tensor.scalar_type()) && !at::isFloat8Type(tensor.scalar_type());
}

using Kernel = std::function<void(torch::jit::Stack&)>;

/// What the kernel makes of such numbers: the results, and the arguments that it writes.
/// Integers stay as they are: they may be places in another argument.
std::vector<at::Tensor> results_of_trial(const OpInfo& info, torch::jit::Stack args, uint32_t seed,
                                         const Kernel& kernel) {
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < args.size(); ++i) {
    if (!args[i].isTensor() || !args[i].toTensor().defined()) continue;
    const at::Tensor& given = args[i].toTensor();
    if (is_real(given))
      args[i] = made_up(given, seed + static_cast<uint32_t>(i));
    else if (info.args[i].write)
      args[i] = given.clone();
    if (info.args[i].write) results.push_back(args[i].toTensor());
  }
  kernel(args);
  for (const c10::IValue& result : args)
    if (result.isTensor() && result.toTensor().defined()) results.push_back(result.toTensor());
  return results;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return x.sizes() == y.sizes() &&
         std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

int64_t smallest(const std::vector<at::Tensor>& tensors) {
  int64_t numel = std::numeric_limits<int64_t>::max();
  for (const at::Tensor& tensor : tensors) numel = std::min(numel, tensor.numel());
  return numel;
}

/// Whether both kernels make the same of the same numbers.
bool give_the_same_bits(const OpInfo& info, const torch::jit::Stack& args, const Kernel& kernel,
                        const Kernel& other) {
  try {
    const IgnoredWarnings quiet;
    const at::DisableRecordFunctionGuard unseen;  // by torch.profiler
    int64_t compared = 0;                         // elements of the smallest result
    for (uint32_t run = 1; run <= kMostRuns; ++run) {
      const std::vector<at::Tensor> all = results_of_trial(info, args, 1111 * run, kernel);
      const std::vector<at::Tensor> alone = results_of_trial(info, args, 1111 * run, other);
      if (all.empty() || !std::equal(all.begin(), all.end(), alone.begin(), alone.end(), same_bits))
        return false;
      compared += smallest(all);
      if (run >= kFewestRuns && compared >= kEnoughElements) return true;
    }
    return false;  // too few to tell
  } catch (const std::exception&) {
    // (Ctrl-C in a kernel in Python is the program's.)
    if (is_interrupt(std::current_exception())) throw;
    return false;  // it does not like the numbers, or memory is short
  }
}

bool one_core_gives_the_bits(const OpInfo& info, const torch::jit::Stack& args, int threads) {
  return give_the_same_bits(
      info, args, [&](torch::jit::Stack& stack) { info.handle.callBoxed(stack); },
      [&](torch::jit::Stack& stack) {
        const OneCore one(threads);
        info.handle.callBoxed(stack);
      });
}

bool slices_give_the_bits(const OpInfo& info, const torch::jit::Stack& args, const Geometry& result,
                          int count) {
  const OneCore one(count);
  return give_the_same_bits(
      info, args, [&](torch::jit::Stack& stack) { info.handle.callBoxed(stack); },
      [&](torch::jit::Stack& stack) {
        const Slices slices = Slices::of(info, stack, result, count).value();
        for (int i = 0; i < count; ++i) slices.run(i);
        stack.assign(1, slices.result());
      });
}

double flops(const std::vector<GeometryRef>& tensors, size_t num_args) {
  // (add)mm, (b)addbmm: the two factors are the last arguments.
  const GeometryRef& left = tensors[num_args - 2];
  return 2.0 * static_cast<double>(left->sizes().back()) *
         static_cast<double>(tensors.back()->numel());
}

double bytes(const std::vector<GeometryRef>& tensors) {
  double sum = 0;
  for (const GeometryRef& tensor : tensors)
    if (tensor)
      sum += static_cast<double>(tensor->numel()) *
             static_cast<double>(c10::elementSize(tensor->dtype()));
  return sum;
}

}  // namespace

void leave_out_table(const OpInfo& info, std::vector<GeometryRef>& tensors) {
  if (info.takes_some_of_first && !tensors.empty()) tensors[0] = nullptr;
}

double microseconds_on_one_core(const OpInfo& info, const std::vector<GeometryRef>& tensors,
                                size_t num_args) {
  if (info.work == Work::lookups)
    return static_cast<double>(tensors.back() ? tensors.back()->numel() : 0) /
           kLookupsPerMicrosecond;
  if (info.work == Work::copies || info.work == Work::elements || info.work == Work::rows)
    return bytes(tensors) / kBytesPerMicrosecond;
  const bool is_product = info.work == Work::product && num_args >= 2 && tensors[num_args - 2] &&
                          tensors.back() && !tensors[num_args - 2]->sizes().empty();
  if (!is_product) return std::numeric_limits<double>::infinity();
  return flops(tensors, num_args) / kFlopsPerMicrosecond;
}

bool takes_all_cores(double microseconds) {
  if (microseconds >= kAlwaysAllCores) return true;
  if (always_in_parts()) return false;
  if (microseconds >= kWorthAllCores) return spare_cores().for_large_ops();
  // (A guest has no helpers: OpenMP would make it some of its own.)
  return microseconds >= kWorthFreeCores && spare_cores().for_large_ops() &&
         spare_cores().program_waits() && !openmp_helpers().sleep() && !AsEngineThread::active();
}

bool Width::is_one(const OpInfo& info, const torch::jit::Stack& args, int threads) {
  if (threads == 1 || !libraries().omp_set || takes_all_cores(microseconds_)) return false;
  if (in_vectors_ && numel_ % (kVectors * threads) != 0) return false;
  int found = found_.load(std::memory_order_relaxed);
  if (!copies_ && std::abs(found) != threads) {
    const int enough = microseconds_ < kWorthAllCores ? kUsesBeforeTrial : kUsesOfLargeBeforeTrial;
    if (uses_.fetch_add(1, std::memory_order_relaxed) < enough) return false;
    found = one_core_gives_the_bits(info, args, threads) ? threads : -threads;
    found_.store(found, std::memory_order_relaxed);
  }
  if (found < 0) return false;
  on_one_core.fetch_add(1, std::memory_order_relaxed);
  return true;
}

double Width::microseconds() const {
  const float best = best_.load(std::memory_order_relaxed);
  return best == std::numeric_limits<float>::max() ? microseconds_ : best;
}

bool Width::slices_have_the_bits(const OpInfo& info, const torch::jit::Stack& args,
                                 const Geometry& result, int threads) {
  int found = slices_.load(std::memory_order_relaxed);
  if (std::abs(found) != threads) {
    found = slices_give_the_bits(info, args, result, threads) ? threads : -threads;
    slices_.store(found, std::memory_order_relaxed);
  }
  return found > 0;
}

double Width::took(double microseconds, int cores) {
  constexpr float kForgets = 1.01f;
  const float before = best_.load(std::memory_order_relaxed);
  const float now = std::min(static_cast<float>(microseconds * cores), before * kForgets);
  best_.store(now, std::memory_order_relaxed);
  return now;
}

uint64_t ops_on_one_core() { return on_one_core.load(std::memory_order_relaxed); }

OneCore::OneCore(int threads) : threads_(threads) {
  if (libraries().omp_set) libraries().omp_set(1);
  if (libraries().mkl_set_local) mkl_threads_ = libraries().mkl_set_local(1);
}

OneCore::~OneCore() {
  if (libraries().omp_set) libraries().omp_set(threads_);
  if (libraries().mkl_set_local) libraries().mkl_set_local(mkl_threads_);
}

}  // namespace lazyeng::run
