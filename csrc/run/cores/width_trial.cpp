// csrc/run/cores/width_trial.cpp: running a kernel in two ways, on the same made-up numbers.
#include "csrc/run/cores/width_trial.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>

#include "csrc/run/cores/recurrent_trial.h"
#include "csrc/run/cores/slices.h"
#include "csrc/run/cores/trial_time.h"
#include "csrc/run/cores/width.h"
#include "csrc/run/failures/ignored_warnings.h"
#include "csrc/run/failures/python_error.h"
#include "csrc/run/unseen.h"

namespace lazyeng::run {
namespace {

/// Elements, of all runs of a trial, from which equal bits by chance are out of the question.
constexpr int64_t kEnoughElements = 192;
/// From which a trial ends early. (A product of [5, 144] by [144, 72] differs in one of nine runs,
/// a softmax of [33, 24] along its rows in four.)
constexpr int64_t kPlentyOfElements = 1 << 14;
/// A trial has so many runs at least, as a difference may be at the edges only, and at most.
constexpr uint32_t kFewestRuns = 3, kMostRuns = 24;
/// After which it ends with enough elements. (What differs only in some runs is soon done.)
constexpr std::chrono::milliseconds kLongTrial{20};
/// Of memory for a trial: an op that is soon done has fewer, but may take them from far apart.
constexpr int64_t kMostElements = 1 << 22;
/// How many made-up numbers there are. A prime: no two rows of a tensor are alike.
constexpr int64_t kNumbers = 65521;

std::atomic<bool> trials_bounded{true};

TrialTime& trial_time() {
  static TrialTime time(TrialTime::Clock::now());
  return time;
}

/// Between 1 and 2, no two alike, with all the digits of their dtype: sums of others may have no
/// roundings that could differ. (Parts of complex numbers are these, too.)
at::Tensor random_numbers(c10::ScalarType dtype) {
  at::Tensor numbers = at::empty({kNumbers}, at::kDouble);
  double* const data = numbers.mutable_data_ptr<double>();
  uint64_t state = 1111;
  for (int64_t i = 0; i < kNumbers; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    data[i] = 1.0 + static_cast<double>(state >> 12) / (uint64_t{1} << 52);
  }
  return numbers.to(dtype);
}

/// Made once, as making them takes longer than the kernels that are tried; they live as long as the
/// process, as threads of the engine may.
const at::Tensor& numbers_of(c10::ScalarType dtype) {
  static const at::Tensor& doubles = *new at::Tensor(random_numbers(at::kDouble));
  static const at::Tensor& floats = *new at::Tensor(random_numbers(at::kFloat));
  static const at::Tensor& halves = *new at::Tensor(random_numbers(at::kHalf));
  static const at::Tensor& bfloats = *new at::Tensor(random_numbers(at::kBFloat16));
  switch (dtype) {
    case at::kDouble:
      return doubles;
    case at::kFloat:
      return floats;
    case at::kHalf:
      return halves;
    default:
      return bfloats;
  }
}

bool gets_numbers(const at::Tensor& tensor) {
  const c10::ScalarType dtype = tensor.scalar_type();
  return (at::isFloatingType(dtype) && !at::isFloat8Type(dtype)) || at::isComplexType(dtype);
}

/// Memory for a tensor of these looks.
at::Tensor memory_for(const at::Tensor& like) {
  int64_t extent = like.numel() == 0 ? 0 : 1;
  for (int64_t d = 0; d < like.dim() && extent != 0; ++d)
    extent += (like.size(d) - 1) * like.stride(d);
  TORCH_CHECK(extent <= kMostElements, "a view of much more memory than it has elements");
  return at::empty({extent}, like.options());
}

at::Tensor with_looks_of(const at::Tensor& like, const at::Tensor& memory) {
  const at::Tensor tensor = memory.as_strided(like.sizes(), like.strides(), 0);
  tensor._set_conj(like.is_conj());
  tensor._set_neg(like.is_neg());
  return tensor;
}

/// Other numbers for another `start`.
at::Tensor made_up(const at::Tensor& like, int64_t start) {
  const at::Tensor memory = memory_for(like);
  const at::Tensor& numbers = numbers_of(c10::toRealValueType(like.scalar_type()));
  const size_t size = numbers.element_size();
  const auto* const from = static_cast<const char*>(numbers.const_data_ptr());
  auto* to = static_cast<char*>(memory.mutable_data_ptr());
  int64_t at = start % kNumbers;
  for (int64_t left = static_cast<int64_t>(memory.nbytes() / size); left > 0; at = 0) {
    const int64_t count = std::min(kNumbers - at, left);
    std::memcpy(to, from + static_cast<size_t>(at) * size, static_cast<size_t>(count) * size);
    to += static_cast<size_t>(count) * size;
    left -= count;
  }
  return with_looks_of(like, memory);
}

/// (clone() would give it the strides of a dense tensor.)
at::Tensor copy_of(const at::Tensor& made) {
  const at::Tensor memory = memory_for(made);
  std::memcpy(memory.mutable_data_ptr(), made.const_data_ptr(), memory.nbytes());
  return with_looks_of(made, memory);
}

/// Arguments of made-up numbers. Integers stay as they are: they may be places in another argument.
torch::jit::Stack made_up_arguments(torch::jit::Stack args, uint32_t seed) {
  for (size_t i = 0; i < args.size(); ++i)
    if (args[i].isTensor() && args[i].toTensor().defined() && gets_numbers(args[i].toTensor()))
      args[i] = made_up(args[i].toTensor(), static_cast<int64_t>(seed + i) * 10007);
  return args;
}

torch::jit::Stack made_up_arguments(const OpInfo& info, const torch::jit::Stack& args,
                                    uint32_t seed) {
  torch::jit::Stack made = made_up_arguments(args, seed);
  if (info.work == Work::recurrent) fit_to_recurrent_layer(info, made);
  return made;
}

using Kernel = std::function<void(torch::jit::Stack&)>;

/// What the kernel makes of the arguments: the results, and copies of what it writes.
std::vector<at::Tensor> results_of_trial(const OpInfo& info, torch::jit::Stack args,
                                         const Kernel& kernel) {
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < args.size(); ++i) {
    if (!info.args[i].write || !args[i].isTensor() || !args[i].toTensor().defined()) continue;
    const at::Tensor& made = args[i].toTensor();
    results.push_back(gets_numbers(made) ? copy_of(made) : made.clone());
    args[i] = results.back();
  }
  kernel(args);
  for (const c10::IValue& result : args)
    if (result.isTensor() && result.toTensor().defined() && !is_workspace(info, result.toTensor()))
      results.push_back(result.toTensor());
  return results;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return a.sizes() == b.sizes() && a.strides() == b.strides() &&
         std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

int64_t smallest(const std::vector<at::Tensor>& tensors) {
  int64_t numel = std::numeric_limits<int64_t>::max();
  for (const at::Tensor& tensor : tensors) numel = std::min(numel, tensor.numel());
  return numel;
}

/// Whether both kernels make the same of the same numbers, on memory of the same layout.
bool give_the_same_bits(const OpInfo& info, const torch::jit::Stack& args, const Kernel& kernel,
                        const Kernel& other) {
  const IgnoredWarnings quiet;
  const Unseen unseen;
  const TrialTime::Clock::time_point begin = TrialTime::Clock::now();
  int64_t compared = 0;  // elements of the smallest result
  for (uint32_t run = 1; run <= kMostRuns; ++run) {
    const torch::jit::Stack numbers = made_up_arguments(info, args, 1111 * run);
    const std::vector<at::Tensor> all = results_of_trial(info, numbers, kernel);
    const std::vector<at::Tensor> alone = results_of_trial(info, numbers, other);
    if (all.empty() || !std::equal(all.begin(), all.end(), alone.begin(), alone.end(), same_bits))
      return false;
    compared += smallest(all);
    if (run < kFewestRuns) continue;
    if (compared >= kPlentyOfElements) break;
    if (compared >= kEnoughElements && TrialTime::Clock::now() - begin > kLongTrial) break;
  }
  return compared >= kEnoughElements;  // (fewer are too few to tell)
}

bool try_both(const OpInfo& info, const torch::jit::Stack& args, const Kernel& kernel,
              const Kernel& other) {
  const TrialTime::Clock::time_point begin = TrialTime::Clock::now();
  bool same = false;
  try {
    same = give_the_same_bits(info, args, kernel, other);
  } catch (const std::exception&) {
    // It does not like the numbers, or memory is short. (Ctrl-C in a kernel in Python is the
    // program's.)
    if (is_interrupt(std::current_exception())) throw;
  }
  trial_time().take(TrialTime::Clock::now() - begin);
  return same;
}

}  // namespace

bool trials_have_time() {
  return !trials_bounded.load(std::memory_order_relaxed) ||
         trial_time().is_left(TrialTime::Clock::now());
}

void set_trials_bounded(bool bounded) { trials_bounded.store(bounded, std::memory_order_relaxed); }

OneCoreTrial try_one_core(const OpInfo& info, const torch::jit::Stack& args, int threads) {
  using Seconds = std::chrono::duration<double>;
  Seconds alone = Seconds::max(), all = Seconds::max();
  const auto call = [&](torch::jit::Stack& stack, Seconds& best) {
    const TrialTime::Clock::time_point begin = TrialTime::Clock::now();
    info.handle.callBoxed(stack);
    best = std::min<Seconds>(best, TrialTime::Clock::now() - begin);
  };
  const bool same = try_both(
      info, args, [&](torch::jit::Stack& stack) { call(stack, all); },
      [&](torch::jit::Stack& stack) {
        const OneCore one(threads);
        call(stack, alone);
      });
  return {same, static_cast<float>(alone / all)};
}

int way_to_slice(const OpInfo& info, const torch::jit::Stack& args, Looks results, int threads,
                 int whole_has) {
  const auto whole = [&](torch::jit::Stack& stack) {
    std::optional<OneCore> one;
    if (whole_has == 1) one.emplace(threads);
    info.handle.callBoxed(stack);
  };
  for (int way = 0; way < ways_to_slice(info, threads); ++way) {
    if (!slices_of(info, args, results, threads, way)) continue;
    const auto in_slices = [&](torch::jit::Stack& stack) {
      const OneCore one(threads);
      const std::unique_ptr<Slices> slices = slices_of(info, stack, results, threads, way);
      for (int i = 0; i < slices->count(); ++i) slices->run(i);
      stack = slices->results();
    };
    if (try_both(info, args, whole, in_slices)) return way;
  }
  return -1;
}

}  // namespace lazyeng::run
