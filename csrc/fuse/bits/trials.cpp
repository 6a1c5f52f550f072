// csrc/fuse/bits/trials.cpp: what is to be tried, when, and what was found.
#include "csrc/fuse/bits/trials.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <optional>

#include "csrc/fuse/bits/exact_rows.h"
#include "csrc/fuse/bits/step_trials.h"
#include "csrc/fuse/result_type.h"
#include "csrc/run/caller/as_engine_thread.h"
#include "csrc/run/caller/thread_settings.h"
#include "csrc/run/cores/width.h"
#include "csrc/run/failures/ignored_warnings.h"

namespace lazyeng::fuse {
namespace {

constexpr size_t kOpcodes = static_cast<size_t>(Opcode::cast) + 1;
constexpr size_t kForms = static_cast<size_t>(Form::layer_norm_backward) + 1;
constexpr c10::ScalarType kDtypes[] = {c10::kFloat, c10::kDouble, c10::kHalf, c10::kBFloat16};

/// What is tried: a step, or a form of reductions along rows.
using Subject = size_t;
constexpr size_t kSubjects = kOpcodes + kForms;
constexpr Subject subject(Opcode opcode) { return static_cast<size_t>(opcode); }
constexpr Subject subject(Form form) { return kOpcodes + static_cast<size_t>(form); }

constexpr uint64_t kNever = ~uint64_t{0};

/// Of a subject in one dtype.
struct TrialState {
  std::atomic<Verdict> verdict{Verdict::untried};
  std::atomic<uint64_t> due{kNever};  ///< the number of an op; set before it is wanted
};
std::array<std::array<TrialState, std::size(kDtypes)>, kSubjects> findings;

TrialState* finding(Subject subject, c10::ScalarType dtype) {
  const auto* const known = std::ranges::find(kDtypes, dtype);
  return known == std::end(kDtypes) ? nullptr : &findings[subject][known - kDtypes];
}

std::atomic<uint64_t> ops_before{kOpsBefore};
/// A trial is begun only so long after the first.
constexpr std::chrono::microseconds kMoment{500};

/// At the op of this number the first of those that are wanted is due.
std::atomic<uint64_t> next_due{kNever};

void lower(std::atomic<uint64_t>& due, uint64_t to) {
  uint64_t known = due.load();
  while (to < known && !due.compare_exchange_weak(known, to)) {
  }
}

/// What has to be tried of the rule in the dtype, if anything.
std::optional<Subject> tried_subject(const OpRule& rule, c10::ScalarType dtype) {
  if (is_reduction(rule.form) && rule.form != Form::loss)
    return has_exact_rows(rule.form, dtype) || has_exact_sum(rule.form, dtype)
               ? std::optional(subject(rule.form))
               : std::nullopt;
  if (is_narrow(dtype)) return std::nullopt;
  const bool scaled = rule.form == Form::binary_scaled || rule.form == Form::reversed;
  const Opcode opcode = scaled ? Opcode::add_scaled : rule.opcode;
  return has_oracle(opcode) ? std::optional(subject(opcode)) : std::nullopt;
}

Verdict try_rows(Form form, c10::ScalarType dtype) {
  return rows_give_torchs_bits(form, dtype) ? Verdict::same : Verdict::other;
}

Verdict find_out(Subject subject, c10::ScalarType dtype) {
  try {
    const run::AsEngineThread below;
    const int threads = at::get_num_threads();
    // (Of numbers that are flushed to zero less would be seen.)
    run::ThreadSettings{threads, /*flush_denormal=*/false}.apply();
    // MKL would make a team of threads for so many numbers.
    const run::OneCore one(threads);
    const run::IgnoredWarnings quiet;
    return subject < kOpcodes ? try_step(static_cast<Opcode>(subject), dtype)
                              : try_rows(static_cast<Form>(subject - kOpcodes), dtype);
  } catch (const std::exception&) {
    return Verdict::other;  // memory is short
  }
}

/// Unless another thread does.
void run_trial(Subject subject, c10::ScalarType dtype) {
  std::atomic<Verdict>& known = finding(subject, dtype)->verdict;
  Verdict wanted = Verdict::wanted;
  if (!known.compare_exchange_strong(wanted, Verdict::running)) return;
  known.store(find_out(subject, dtype));
  rules_changed();
}

void want(Subject subject, c10::ScalarType dtype, uint64_t due) {
  TrialState* const found = finding(subject, dtype);
  if (!found || found->verdict.load(std::memory_order_relaxed) > Verdict::wanted) return;
  lower(found->due, due);
  Verdict untried = Verdict::untried;
  found->verdict.compare_exchange_strong(untried, Verdict::wanted);
  lower(next_due, due);
}

/// After so many ops of that size a trial costs no more than they did.
uint64_t ops_to_wait(int64_t numel) {
  const uint64_t worth = kElementsBefore / static_cast<uint64_t>(std::max<int64_t>(numel, 1));
  return std::min(worth, ops_before.load(std::memory_order_relaxed));
}

const char* word_for(Verdict verdict) {
  constexpr const char* kNames[] = {"untried",       "wanted",        "running", "same",
                                    "same if dense", "same if whole", "other"};
  return kNames[static_cast<size_t>(verdict)];
}

}  // namespace

void want_trial(const run::OpInfo& info, c10::ScalarType dtype, int64_t numel, uint64_t number) {
  const OpRule* rule = rule_of(info);
  const std::optional<Subject> tried = rule ? tried_subject(*rule, dtype) : std::nullopt;
  if (!tried) return;
  const uint64_t due = number + ops_to_wait(numel);
  want(*tried, dtype, due);
  // (An argument says which of two it is.)
  if (rule->form == Form::gelu) want(subject(Opcode::gelu_tanh), dtype, due);
}

bool trials_are_due(uint64_t number) {
  return number >= next_due.load(std::memory_order_relaxed) && !allows_inexact(c10::kCPU);
}

void run_trials(uint64_t number) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  const bool all = ops_before.load(std::memory_order_relaxed) == 0;
  next_due.store(kNever);  // (what is wanted from here on lowers it again)
  for (Subject subject = 0; subject < kSubjects; ++subject)
    for (const c10::ScalarType dtype : kDtypes) {
      const TrialState& found = *finding(subject, dtype);
      if (found.verdict.load() != Verdict::wanted) continue;
      const uint64_t due = found.due.load(std::memory_order_relaxed);
      if (due <= number && (all || Clock::now() - begin < kMoment))
        run_trial(subject, dtype);
      else
        lower(next_due, due);
    }
}

void set_ops_before_trials(uint64_t ops) { ops_before.store(ops, std::memory_order_relaxed); }

bool gives_torchs_bits(Opcode opcode, c10::ScalarType dtype, bool dense, bool whole) {
  const TrialState* const found = finding(subject(opcode), dtype);
  if (!found) return false;
  const Verdict verdict = found->verdict.load(std::memory_order_relaxed);
  return verdict == Verdict::same || (dense && verdict == Verdict::same_if_dense) ||
         (dense && whole && verdict == Verdict::same_if_whole);
}

bool gives_torchs_bits(Form form, c10::ScalarType dtype) {
  const TrialState* const found = finding(subject(form), dtype);
  return found && found->verdict.load(std::memory_order_relaxed) == Verdict::same;
}

std::vector<TriedOp> tried_ops() {
  std::vector<TriedOp> ops;
  for (const auto& [name, rule] : all_rules())
    if (const std::optional<Subject> tried = tried_subject(rule, c10::kFloat)) {
      const auto word = [&](c10::ScalarType dtype) {
        return word_for(finding(*tried, dtype)->verdict.load());
      };
      ops.push_back(
          {name, word(c10::kFloat), word(c10::kDouble), word(c10::kHalf), word(c10::kBFloat16)});
    }
  return ops;
}

}  // namespace lazyeng::fuse
