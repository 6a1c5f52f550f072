// csrc/run/cores/width.cpp: what an op costs, and how many cores it has.
#include "csrc/run/cores/width.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "csrc/run/caller/as_engine_thread.h"
#include "csrc/run/caller/only_thread.h"
#include "csrc/run/caller/read_habit.h"
#include "csrc/run/cores/openmp_team.h"
#include "csrc/run/cores/own_threads.h"
#include "csrc/run/cores/parts.h"
#include "csrc/run/cores/spare_cores.h"
#include "csrc/run/cores/width_trial.h"

namespace lazyeng::run {
namespace {

/// A program that runs an op only so often gains nothing by the trial; nor by that of a large one,
/// which takes milliseconds.
constexpr int kUsesBeforeTrial = 3;
constexpr int kUsesOfLargeBeforeTrial = 20;

// The table of costs, for a core of about 3 GHz.
constexpr double kFlopsPerMicrosecond = 60e3;
constexpr double kBytesPerMicrosecond = 10e3;
constexpr double kLookupsPerMicrosecond = 150;
constexpr double kElementsOfWindowsPerMicrosecond = 250;

/// A kernel that fans out again and again waits for its helpers as often. Where all cores are not
/// so many times as fast as one it has one, even if nobody else wants the others.
constexpr float kLeastGain = 1.25;

std::atomic<uint64_t> on_one_core{0};

/// Nothing if the tensors are not those of a product.
std::optional<double> flops_of_product(const OpInfo& info, const std::vector<GeometryRef>& tensors,
                                       size_t num_args) {
  if (num_args < 2 || !tensors.back()) return std::nullopt;
  // (add)mm, (b)addbmm: the two factors are the last arguments; of linear a bias follows.
  const GeometryRef& left = tensors[info.short_name == "linear" ? 0 : num_args - 2];
  if (!left || left->sizes().empty()) return std::nullopt;
  return 2.0 * static_cast<double>(left->sizes().back()) *
         static_cast<double>(tensors.back()->numel());
}

/// Arguments: input and weight; of the gradient that of the result, then these two.
std::optional<double> flops_of_convolution(const OpInfo& info,
                                           const std::vector<GeometryRef>& tensors,
                                           size_t num_args) {
  const bool gradient = info.short_name == "convolution_backward";
  if (num_args < 3 || num_args >= tensors.size()) return std::nullopt;
  const GeometryRef& input = tensors[gradient ? 1 : 0];
  const GeometryRef& weight = tensors[gradient ? 2 : 1];
  const GeometryRef& result = tensors[gradient ? 0 : num_args];
  if (!input || !weight || !result || weight->numel() == 0 || result->sizes().size() < 3)
    return std::nullopt;
  // A weight begins with the channels of the result; where it is transposed, of the input.
  const int64_t channels = weight->sizes()[0];
  const GeometryRef& places = result->sizes()[1] == channels ? result : input;
  return (gradient ? 4.0 : 2.0) * static_cast<double>(places->numel()) *
         static_cast<double>(weight->numel()) / static_cast<double>(channels);
}

/// Arguments: input, the weights of input and state, ...
std::optional<double> flops_of_recurrent_layer(const OpInfo& info,
                                               const std::vector<GeometryRef>& tensors) {
  if (!tensors[0] || !tensors[1] || !tensors[2] || tensors[0]->sizes().empty()) return std::nullopt;
  const auto inputs = static_cast<double>(std::max<int64_t>(tensors[0]->sizes().back(), 1));
  const auto weights = static_cast<double>(tensors[1]->numel() + tensors[2]->numel());
  const bool gradient = info.short_name == "mkldnn_rnn_layer_backward";
  return (gradient ? 4.0 : 2.0) * static_cast<double>(tensors[0]->numel()) / inputs * weights;
}

double elements(const std::vector<GeometryRef>& tensors) {
  double sum = 0;
  for (const GeometryRef& tensor : tensors)
    if (tensor) sum += static_cast<double>(tensor->numel());
  return sum;
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

double microseconds_of_flops(double flops) { return flops / kFlopsPerMicrosecond; }

void leave_out_table(const OpInfo& info, std::vector<GeometryRef>& tensors) {
  if (info.takes_some_of_first && !tensors.empty()) tensors[0] = nullptr;
}

double microseconds_on_one_core(const OpInfo& info, const std::vector<GeometryRef>& tensors,
                                size_t num_args) {
  constexpr double kUnknown = std::numeric_limits<double>::infinity();
  switch (info.work) {
    case Work::lookups:
      return static_cast<double>(tensors.back() ? tensors.back()->numel() : 0) /
             kLookupsPerMicrosecond;
    case Work::copies:
    case Work::elements:
    case Work::rows:
      return bytes(tensors) / kBytesPerMicrosecond;
    case Work::windows:
      return elements(tensors) / kElementsOfWindowsPerMicrosecond;
    case Work::product:
      return microseconds_of_flops(flops_of_product(info, tensors, num_args).value_or(kUnknown));
    case Work::convolution:
      return microseconds_of_flops(
          flops_of_convolution(info, tensors, num_args).value_or(kUnknown));
    case Work::recurrent:
      return microseconds_of_flops(flops_of_recurrent_layer(info, tensors).value_or(kUnknown));
    case Work::other:
      break;
  }
  return kUnknown;
}

bool program_has_all_cores() {
  return read_habit.has_it() && openmp_helpers().program_may_have_team() && engine_rests();
}

void wish_for_all_cores(double microseconds) {
  if (microseconds >= kWorthSpinningCores && AsEngineThread::active())
    openmp_helpers().program_wants_team();
}

bool has_spinning_cores(double microseconds) {
  return microseconds >= kWorthSpinningCores && AsEngineThread::active() && program_has_all_cores();
}

bool takes_all_cores(double microseconds) {
  if (microseconds >= kAlwaysAllCores) return true;
  if (always_in_parts()) return false;
  if (has_spinning_cores(microseconds)) return true;
  if (microseconds >= kWorthAllCores) return spare_cores().for_large_ops();
  return microseconds >= kWorthFreeCores && spare_cores().for_large_ops() &&
         spare_cores().program_waits() && !openmp_helpers().sleep() && !AsEngineThread::active();
}

/// It is not soon done. (Of ops in no table all that is known may be what a worker took, whose
/// helpers sleep: half as long again.)
bool Width::takes_long(int threads) const {
  return cost() >= (may_be_one_ ? kSoonDone : 1.5 * kSoonDone) * threads;
}

/// (Where there are many workers, ops that do not use all cores had better run side by side.)
bool Width::is_for_reader(int threads) const {
  if (!takes_long(threads)) return true;
  if (!read_habit.runs_long_ops() || !is_short_enough(threads)) return false;
  const unsigned workers = engine_workers();
  const bool uses_all_cores = is_in_table() && static_cast<unsigned>(threads) > workers;
  return (workers < 2 || uses_all_cores) && engine_rests() && is_only_thread();
}

/// (Measured, where it was: the table knows no dtypes.)
bool Width::is_short_enough(int threads) const {
  return microseconds() < kLongestOfReader * threads;
}

bool Width::is_in_table() const { return std::isfinite(microseconds_); }

LongOp::LongOp(const Width* width, int threads)
    : width_(width && width->takes_long(threads) ? width : nullptr), threads_(threads) {
  if (!width_ && !read_habit.had_long_op()) return;
  begin_ = ReadHabit::Clock::now();
  if (width_) note_long_op();
}

LongOp::~LongOp() {
  if (begin_ == ReadHabit::Clock::time_point()) return;
  const ReadHabit::Clock::time_point end = ReadHabit::Clock::now();
  if (width_)
    read_habit.has_long_op(width_->is_short_enough(threads_), begin_, end);
  else
    read_habit.ran_for(end - begin_);
}

double Width::cost() const { return std::min(microseconds_, microseconds()); }

bool Width::is_narrow(int threads) const {
  if (!may_be_one_ || threads == 1 || !has_own_threads()) return false;
  if (has_many_regions_ && gain_of_all_.load(std::memory_order_relaxed) < kLeastGain) return true;
  // (Few elements by the table may be much work: a logarithm of a gamma function.)
  if (takes_all_cores(cost()) || has_spinning_cores(microseconds())) return false;
  return !shares_ || shares_->begin_at_vectors(threads);
}

bool Width::one_has_the_bits(const OpInfo& info, const torch::jit::Stack& args, int threads) {
  if (copies_) return true;
  std::optional<int> same = same_on_one_.of(threads);
  if (!same) {
    const int enough = cost() < kWorthAllCores ? kUsesBeforeTrial : kUsesOfLargeBeforeTrial;
    if (uses_.fetch_add(1, std::memory_order_relaxed) < enough || !trials_have_time()) return false;
    const OneCoreTrial trial = try_one_core(info, args, threads);
    gain_of_all_.store(trial.gain, std::memory_order_relaxed);
    same = trial.same;
    same_on_one_.note(threads, *same);
  }
  return *same;
}

double Width::microseconds() const {
  const float best = best_.load(std::memory_order_relaxed);
  if (best != std::numeric_limits<float>::max()) return best;
  return std::min(microseconds_, static_cast<double>(of_group_.load(std::memory_order_relaxed)));
}

std::unique_ptr<Slices> Width::slices(const OpInfo& info, const torch::jit::Stack& args,
                                      Looks results, int threads) {
  std::optional<int> way = same_in_slices_.of(threads);
  if (!way) {
    const std::optional<int> one_is_same = same_on_one_.of(threads);
    if ((!copies_ && !one_is_same) || !trials_have_time()) return nullptr;
    const int whole_has = copies_ || *one_is_same != 0 ? 1 : threads;
    way = 1 + way_to_slice(info, args, results, threads, whole_has);
    same_in_slices_.note(threads, *way);
  }
  return *way == 0 ? nullptr : slices_of(info, args, results, threads, *way - 1);
}

double Width::took(double microseconds, int cores) {
  constexpr float kForgets = 1.01f;
  const float before = best_.load(std::memory_order_relaxed);
  const float now = std::min(static_cast<float>(microseconds * cores), before * kForgets);
  best_.store(now, std::memory_order_relaxed);
  return now;
}

bool Width::is_unknown() const { return !std::isfinite(microseconds()); }

void Width::ran_in_group(double microseconds) {
  of_group_.store(static_cast<float>(microseconds), std::memory_order_relaxed);
}

uint64_t ops_on_one_core() { return on_one_core.load(std::memory_order_relaxed); }
void count_on_one_core() { on_one_core.fetch_add(1, std::memory_order_relaxed); }

OneCore::OneCore(int threads) : threads_(threads) {
  set_own_threads(1);
  mkl_threads_ = set_own_mkl_threads(1);
}

OneCore::~OneCore() {
  set_own_threads(threads_);
  set_own_mkl_threads(mkl_threads_);
}

}  // namespace lazyeng::run
