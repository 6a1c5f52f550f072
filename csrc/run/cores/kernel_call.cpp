// csrc/run/cores/kernel_call.cpp: on one core, in slices, or on all cores.
#include "csrc/run/cores/kernel_call.h"

#include <ATen/record_function.h>

#include "csrc/run/caller/as_engine_thread.h"
#include "csrc/run/cores/openmp_team.h"
#include "csrc/run/cores/parts.h"
#include "csrc/run/cores/spare_cores.h"
#include "csrc/run/unseen.h"

namespace lazyeng::run {
namespace {

/// Microseconds. What a helper waits for its core, if it shares one, is some times as much.
constexpr double kSlice = 1000;

/// A team that a kernel, or a trial of one, has left to a thread that waits: beside that of an
/// engine thread it would put the helpers of both to sleep.
struct EndsOwnTeam {
  ~EndsOwnTeam() {
    if (AsEngineThread::active() && !program_has_all_cores()) openmp_helpers().end_own_team();
  }
};

}  // namespace

std::unique_lock<std::mutex> take_all_cores() {
  static std::mutex all_cores;
  std::unique_lock lock(all_cores, std::defer_lock);
  if (AsEngineThread::active()) {
    if (!lock.try_lock()) return lock;
    openmp_helpers().program_has_team();
  } else {
    lock.lock();
    openmp_helpers().engine_has_team();
  }
  openmp_helpers().look_for_cores();
  if (openmp_helpers().is_crowded()) openmp_helpers().program_records();
  return lock;
}

/// Large ops run on all cores, with torch's own width, so that results are eager's bit for bit.
/// (Most kernels fan out for no less.)
void KernelCall::run(torch::jit::Stack& stack) const {
  const EndsOwnTeam scope;
  if (width_) wish_for_all_cores(width_->microseconds());
  if (width_ && width_->is_narrow(settings_.num_threads) && run_narrowly(stack)) return;
  const auto cores = wide_ ? take_all_cores() : std::unique_lock<std::mutex>();
  if (cores || width_)
    measure(settings_.num_threads, [&] { info_.handle.callBoxed(stack); });
  else
    info_.handle.callBoxed(stack);
}

/// On one core, or in slices that others may take a part of. False if the bits want all cores, so
/// far as is known.
bool KernelCall::run_narrowly(torch::jit::Stack& stack) const {
  const int threads = settings_.num_threads;
  const bool whole = width_->one_has_the_bits(info_, stack, threads);
  // (The program has helpers that spin: quicker than slices.)
  if (!whole && AsEngineThread::active() && program_has_all_cores()) return false;
  const bool others_help = parts_pay(width_->microseconds(), threads);
  if (!(others_help || !whole) || !run_in_slices(stack, others_help)) {
    if (!whole) return false;
    const OneCore one(threads);
    measure(1, [&] { info_.handle.callBoxed(stack); });
  }
  count_on_one_core();
  return true;
}

bool KernelCall::run_in_slices(torch::jit::Stack& stack, bool others_help) const {
  const int threads = settings_.num_threads;
  ResultLooks looks;
  results_(looks);
  const std::unique_ptr<Slices> slices = width_->slices(info_, stack, looks, threads);
  if (!slices) return false;
  // (torch.profiler sees one call, of all parts.)
  RECORD_FUNCTION(info_.handle.schema().name().c_str(), c10::ArrayRef<const c10::IValue>());
  const Unseen unseen;
  if (others_help) {
    const double on_one_core = width_->microseconds();
    run_in_parts(slices->count(), settings_, [&](int part) { slices->run(part); });
    if (on_one_core >= kWorthAllCores)
      spare_cores().ran_large(on_one_core, threads, SpareCores::Clock::now());
  } else {
    const OneCore one(threads);
    measure(1, [&] {
      for (int part = 0; part < slices->count(); ++part) slices->run(part);
    });
  }
  const OneCore one(threads);
  stack = slices->results();
  return true;
}

template <class Call>
void KernelCall::measure(int cores, const Call& call) const {
  const auto begin = SpareCores::Clock::now();
  call();
  const auto end = SpareCores::Clock::now();
  const double took = std::chrono::duration<double, std::micro>(end - begin).count();
  const double on_one_core = width_ ? width_->took(took, cores) : took * cores;
  if (cores > 1 && took > on_one_core + kSlice) openmp_helpers().kernel_was_late();
  if (cores > 1 && !spare_cores().for_large_ops() && on_one_core >= kWorthFreeCores)
    spare_cores().ran_on_all(on_one_core, settings_.num_threads, end);
  else if (on_one_core >= kWorthAllCores)
    spare_cores().ran_large(on_one_core, settings_.num_threads, end);
}

}  // namespace lazyeng::run
