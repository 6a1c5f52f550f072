// csrc/run/cores/width.h: what an op takes, and whether one core shall do it.
//
// A kernel that fans out wakes a helper thread of OpenMP and waits for it. That costs some 50 us
// where the helper sleeps, as it does while the program records, and takes the core from the
// recording thread: a product of 40 us took as long on two cores as on one, and the program lost
// the time twice. So what one core does in less than kWorthAllCores runs there.
//
// But a result must have eager's bits, and those may depend on the number of threads: a product's
// partial sums may be others. For most shapes they are not, which no library promises. So it is
// tried, once for each plan (width_trial.h): the kernel runs on made-up numbers, on one core and on
// all. Only ops whose order of arithmetic is decided by shapes alone are asked (OpInfo::work). An
// op whose bits differ keeps eager's width, as does one while trials have taken their time: unless
// it can be taken apart so that the slices (slices.h), one after another, have the bits of all
// cores. The gradient of a convolution can mostly.
// Elementwise kernels do the last few elements of each thread's share in another way, which a
// trial may miss: they are asked only where shares are whole vectors (row_shares.h). Copies need no
// trial.
#pragma once

#include <ATen/core/stack.h>

#include <atomic>
#include <chrono>
#include <limits>
#include <optional>

#include "csrc/engine/ref.h"
#include "csrc/run/cores/finding.h"
#include "csrc/run/cores/row_shares.h"
#include "csrc/run/cores/slices.h"
#include "csrc/run/geometry.h"
#include "csrc/run/op_info.h"

namespace lazyeng::run {

/// Microseconds on one core from which it may pay to wake the others: if the program leaves them
/// (spare_cores.h).
inline constexpr double kWorthAllCores = 150;
/// From which on an op has all cores in any case.
inline constexpr double kAlwaysAllCores = 5000;
/// From which it pays to use the others if they are awake, and the program waits.
inline constexpr double kWorthFreeCores = 30;

/// From which on a thread of the program that runs it has all cores, where it may: its helpers
/// spin.
inline constexpr double kWorthSpinningCores = 4;
/// On all cores: what takes less is soon done, and a program that reads soon runs it itself.
/// (Handing it to a worker, and hearing of its end, takes 50 to 100.)
inline constexpr double kSoonDone = 300;
/// Likewise: what a program that has nothing else to do runs itself (csrc/run/caller/read_habit.h).
/// Ctrl-C waits for its end.
inline constexpr double kLongestOfReader = 20e3;

/// Whether the calling thread of the program, which runs ops itself, has all cores for them, as in
/// eager code: it is one that reads soon, and nobody else uses them. (One that waits for much is a
/// guest of a worker that has a team: with a second one, there would be more threads in teams than
/// cores, and libgomp puts all helpers to sleep after each region.)
bool program_has_all_cores();
/// It is going to run what takes so long on one: wished for often, it has them (openmp_team.h).
void wish_for_all_cores(double microseconds);
/// Whether the calling thread is one, and has them for what takes so long on one.
bool has_spinning_cores(double microseconds);

/// Whether what takes so long on one core, by the table, has all of them now.
bool takes_all_cores(double microseconds);

/// Leaves out the tensor that a lookup (of elements, of rows) takes some of: it may be much larger
/// than what the op goes over.
void leave_out_table(const OpInfo& info, std::vector<GeometryRef>& tensors);

/// Of so many floating point operations of products, by the same table.
double microseconds_of_flops(double flops);

/// Of an op with these tensors: the arguments (null: none, or left out), then the results.
/// Microseconds on one core, by a table for float32 on a core of about 3 GHz with AVX2; infinite
/// for ops that are not among those above.
double microseconds_on_one_core(const OpInfo& info, const std::vector<GeometryRef>& tensors,
                                size_t num_args);

/// What was found for one plan: what its calls take, and on how many cores they may run. Any
/// thread.
class Width final : public RefCounted {
 public:
  /// `shares`: of an elementwise op.
  Width(const OpInfo& info, double microseconds, std::optional<RowShares> shares)
      : microseconds_(microseconds),
        may_be_one_(true),
        copies_(info.work == Work::copies || info.work == Work::lookups),
        has_many_regions_(info.work == Work::recurrent),
        shares_(std::move(shares)) {}
  /// Of an op that has eager's width in any case.
  explicit Width(double microseconds)
      : microseconds_(microseconds), may_be_one_(false), copies_(false), has_many_regions_(false) {}

  /// Whether one core would do now, if that has the bits; else `threads` have it, as in eager.
  bool is_narrow(int threads) const;
  /// Whether it has. `args` are the arguments of this run. Tries it, once, when the plan has been
  /// used a few times.
  bool one_has_the_bits(const OpInfo& info, const torch::jit::Stack& args, int threads);
  /// Whether the kernel is known to start no helpers where is_narrow() is: a thread that waits may
  /// run it.
  bool starts_no_helpers() const { return copies_ || same_on_one_.holds(); }
  /// Whether the calling thread runs it itself if it reads soon: so many cores are soon done with
  /// it, or the thread has nothing else to do meanwhile.
  bool is_for_reader(int threads) const;
  /// What it takes on one core, so far as is known.
  double microseconds() const;
  /// The same. (What it took may have been a wait for helpers, or for a core: no more than the
  /// table says.)
  double cost() const;
  /// The call taken apart, so that the slices, each on one core, have the bits of the whole; null
  /// if it cannot be. Tries it, once it is known whether one core has them.
  std::unique_ptr<Slices> slices(const OpInfo& info, const torch::jit::Stack& args, Looks results,
                                 int threads);
  /// A run took so long on so many cores. Returns what it takes on one, from what
  /// it took at best lately (helpers that stand in line say nothing about the op).
  double took(double microseconds, int cores);
  /// Whether it is in no table, and has never run by itself, nor in a group.
  bool is_unknown() const;
  /// It ran in a group that takes so long on one core, by the table: no longer, so far as is known.
  void ran_in_group(double microseconds);

 private:
  friend class LongOp;

  bool takes_long(int threads) const;
  bool is_short_enough(int threads) const;  // for a reader to run it
  bool is_in_table() const;

  const double microseconds_;  // on one core, by the table
  std::atomic<float> best_{std::numeric_limits<float>::max()};
  std::atomic<float> of_group_{std::numeric_limits<float>::infinity()};
  const bool may_be_one_;
  const bool copies_;
  const bool has_many_regions_;  // its kernel fans out again and again
  const std::optional<RowShares> shares_;
  std::atomic<int> uses_{0};
  Finding same_on_one_;                // one core gives the bits of all
  std::atomic<float> gain_of_all_{0};  // by the same trial: how many times as fast they are
  Finding same_in_slices_;             // slices do, taken apart in the way before this one
};

/// While it lives the calling thread records the op of this plan (null: a small one), or runs it at
/// the call: noted in its ReadHabit if that takes long, or comes after such.
class LongOp {
 public:
  LongOp(const Width* width, int threads);
  ~LongOp();
  LongOp(const LongOp&) = delete;
  LongOp& operator=(const LongOp&) = delete;

 private:
  const Width* const width_;  // null: it does not
  const int threads_;
  std::chrono::steady_clock::time_point begin_{};  // if it is noted
};

/// How many ops were run on one core that would have had all of them.
uint64_t ops_on_one_core();
void count_on_one_core();

/// While it lives, kernels of the calling thread start no helpers.
class OneCore {
 public:
  explicit OneCore(int threads);
  ~OneCore();
  OneCore(const OneCore&) = delete;
  OneCore& operator=(const OneCore&) = delete;

 private:
  const int threads_;
  int mkl_threads_ = 0;
};

}  // namespace lazyeng::run
