// csrc/record/metadata/smaller.cpp: exchanging sizes, and reading what comes out.
#include "csrc/record/metadata/smaller.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <array>

#include "csrc/record/metadata/costs.h"
#include "csrc/record/metadata/meta_answers.h"
#include "csrc/run/cores/width.h"
#include "csrc/run/executor.h"
#include "csrc/run/failures/ignored_warnings.h"
#include "csrc/run/failures/python_error.h"
#include "csrc/run/python_ref.h"

namespace lazyeng::record {
namespace {

using Kind = OutputPlan::Kind;

constexpr int64_t kKept = 4;  // sizes up to this one stand for themselves
constexpr size_t kExchanges = 3;
constexpr size_t kMaxSizes = 5;
/// What the sizes of a call become, in ascending order. No row is another one plus a constant, or
/// half of it.
constexpr std::array<std::array<int64_t, kExchanges>, kMaxSizes> kSmall = {
    {{5, 6, 8}, {9, 13, 11}, {14, 17, 22}, {20, 28, 29}, {27, 33, 39}}};

/// Contiguous, also by strides that no element shows.
bool lies_side_by_side(const run::Geometry& look) {
  return look.strides() == c10::IntArrayRef(c10::contiguous_strides(look.sizes()));
}

using Sizes = c10::SmallVector<int64_t, kMaxSizes>;

/// Ascending. Empty: there are too many.
Sizes sizes_to_exchange(const Call& call) {
  Sizes sizes;
  for (const run::GeometryRef& look : call.looks) {
    if (!look) continue;
    for (const int64_t size : look->sizes())
      if (size > kKept && std::find(sizes.begin(), sizes.end(), size) == sizes.end()) {
        if (sizes.size() == kMaxSizes) return {};
        sizes.push_back(size);
      }
  }
  std::sort(sizes.begin(), sizes.end());
  return sizes;
}

/// One of the exchanges.
class Exchange {
 public:
  Exchange(const Sizes& sizes, size_t which) : sizes_(sizes), which_(which) {}

  int64_t operator()(int64_t size) const {
    const auto at = std::lower_bound(sizes_.begin(), sizes_.end(), size);
    return at == sizes_.end() || *at != size ? size : kSmall[at - sizes_.begin()][which_];
  }

  run::GeometryRef look(const run::Geometry& large) const {
    run::GeometryData small = large.data();
    for (int64_t& size : small.sizes) size = (*this)(size);
    small.strides = c10::contiguous_strides(c10::IntArrayRef(small.sizes));
    small.offset = 0;
    return run::intern(small);
  }

  c10::IValue argument(const c10::IValue& large) const {
    if (large.isInt()) return (*this)(large.toInt());
    if (!large.isIntList()) return large;
    std::vector<int64_t> small = large.toIntVector();
    for (int64_t& number : small) number = (*this)(number);
    return small;
  }

 private:
  const Sizes& sizes_;
  const size_t which_;
};

/// The call with smaller tensors, of no memory.
void fill_smaller(const Call& call, const Exchange& exchange, Call& small) {
  for (size_t i = 0; i < call.args.size(); ++i)
    small.args.push_back(call.info.args[i].counts ? exchange.argument(call.args[i]) : call.args[i]);
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const run::GeometryRef& look = call.looks[i];
    run::TensorArg tensor;
    tensor.written = call.tensors[i].written;
    if (look && look->data().wrapped_number) tensor.raw = call.tensors[i].raw;
    small.tensors.push_back(std::move(tensor));
    small.looks.push_back(look ? exchange.look(*look) : nullptr);
  }
}

bool wrote_what_it_got(const Call& small, const StandIns& stand_ins) {
  for (size_t i = 0; i < small.tensors.size(); ++i)
    if (small.tensors[i].written && small.looks[i] &&
        !run::matches(*small.looks[i], stand_ins.tensors()[i]))
      return false;
  return true;
}

/// What the kernel makes of these sizes, stand-ins of integral dtypes holding `integers`. It may
/// refuse them.
SmallerAnswer ask(const Call& small, int integers) {
  run::RealDispatch below;
  const run::OneCore one(at::get_num_threads());
  const run::IgnoredWarnings quiet;
  try {
    const StandIns stand_ins(small, For::kernel, integers);
    torch::jit::Stack stack = stand_ins.arguments();
    small.info.handle.callBoxed(stack);
    auto plan = make_ref<CallPlan>();
    if (!stand_ins.kept_storages() || !wrote_what_it_got(small, stand_ins) ||
        !read_results(small, stand_ins.tensors(), stack, *plan))
      return {};
    return {plan};
  } catch (const std::exception&) {  // the run that follows raises eager's own words
    if (run::is_interrupt(std::current_exception())) throw;
    if (run::is_python_error(std::current_exception())) {
      const run::Gil gil;
      PyErr_Clear();
    }
  }
  return {.plan = nullptr, .refused = true};
}

using Answers = std::array<CallPlanRef, kExchanges>;

run::GeometryRef of_dtype(const run::Geometry& look, c10::ScalarType dtype) {
  run::GeometryData data = look.data();
  data.dtype = dtype;
  return run::intern(data);
}

/// The size that has become these. Empty: none has.
std::optional<int64_t> size_of(const Sizes& sizes, const std::array<int64_t, kExchanges>& seen) {
  for (size_t i = 0; i < sizes.size(); ++i)
    if (kSmall[i] == seen) return sizes[i];
  const bool constant = seen[0] == seen[1] && seen[0] == seen[2];
  return constant ? std::optional(seen[0]) : std::nullopt;
}

/// Result `r` in all answers.
std::optional<OutputPlan> output_of(const Sizes& sizes, const Answers& answers, size_t r) {
  std::array<const OutputPlan*, kExchanges> seen;
  for (size_t which = 0; which < kExchanges; ++which) {
    seen[which] = &answers[which]->outputs[r];
    if (seen[which]->kind != seen[0]->kind || seen[which]->kind == Kind::view) return std::nullopt;
  }
  if (seen[0]->kind == Kind::undefined) return *seen[0];
  run::GeometryData large = seen[0]->geometry->data();
  for (const OutputPlan* output : seen)
    if (!lies_side_by_side(*output->geometry) || output->geometry->dtype() != large.dtype ||
        output->geometry->sizes().size() != large.sizes.size())
      return std::nullopt;
  for (size_t d = 0; d < large.sizes.size(); ++d) {
    const auto size = size_of(sizes, {seen[0]->geometry->sizes()[d], seen[1]->geometry->sizes()[d],
                                      seen[2]->geometry->sizes()[d]});
    if (!size) return std::nullopt;
    large.sizes[d] = *size;
  }
  large.strides = c10::contiguous_strides(c10::IntArrayRef(large.sizes));
  return OutputPlan{Kind::fresh, 0, run::intern(large), 0};
}

CallPlanRef plan_from(const Call& call, const Sizes& sizes, const Answers& answers) {
  auto plan = make_ref<CallPlan>();
  for (const CallPlanRef& answer : answers)
    if (!answer->numbers.empty() || answer->list_lengths != answers[0]->list_lengths ||
        answer->outputs.size() != answers[0]->outputs.size())
      return nullptr;
  plan->list_lengths = answers[0]->list_lengths;
  for (size_t r = 0; r < answers[0]->outputs.size(); ++r) {
    std::optional<OutputPlan> output = output_of(sizes, answers, r);
    if (!output) return nullptr;
    plan->outputs.push_back(std::move(*output));
  }
  add_doubt(call, *plan);
  add_costs(call, *plan);
  return plan;
}

/// Of all exchanges.
SmallerAnswer ask(const Call& call, const Sizes& sizes, int integers) {
  Answers answers;
  for (size_t which = 0; which < kExchanges; ++which) {
    Call small(call.info);
    fill_smaller(call, Exchange(sizes, which), small);
    if (!kernel_can_be_tried(small)) return {};
    const SmallerAnswer answer = ask(small, integers);
    if (!answer.plan) return answer;
    answers[which] = answer.plan;
  }
  return {plan_from(call, sizes, answers)};
}

bool all_lie_side_by_side(const Call& call) {
  return std::all_of(call.looks.begin(), call.looks.end(), [](const run::GeometryRef& look) {
    return !look || (lies_side_by_side(*look) && !look->data().conj && !look->data().neg);
  });
}

bool tells_by_sizes(const run::OpInfo& info) {
  return info.checks_sizes && !info.data_dependent && !info.moves_metadata && !info.looks_at_grad;
}

/// The smaller tensors lie in memory of their own each, so their kernel does not complain.
bool writes_what_it_reads(const Call& call) {
  for (size_t i = 0; i < call.tensors.size(); ++i)
    for (size_t j = 0; call.tensors[i].written && j < call.tensors.size(); ++j)
      if (i != j && call.looks[i] && call.looks[j] && share_memory(call, i, j)) return true;
  return false;
}

/// An integer above those that stand for themselves, and that is no size (the k of kthvalue).
bool is_other_number(const c10::IValue& argument, const Sizes& sizes) {
  const auto is_other = [&](int64_t number) {
    return number > kKept && !std::binary_search(sizes.begin(), sizes.end(), number);
  };
  if (argument.isInt()) return is_other(argument.toInt());
  if (!argument.isIntList()) return false;
  const std::vector<int64_t> numbers = argument.toIntVector();
  return std::any_of(numbers.begin(), numbers.end(), is_other);
}

bool has_other_numbers(const Call& call, const Sizes& sizes) {
  for (size_t i = 0; i < call.args.size(); ++i)
    if (call.info.args[i].counts && is_other_number(call.args[i], sizes)) return true;
  return false;
}

/// Sizes are exchanged for larger ones, within which a number may be that is beyond the real ones.
bool hides_a_bound(const Call& call, const Sizes& sizes) {
  bool grows = false;
  for (size_t i = 0; i < sizes.size(); ++i) grows |= kSmall[i].back() > sizes[i];
  return grows && has_other_numbers(call, sizes);
}

/// Its sizes, if the call is one that can be asked about. Else empty.
Sizes exchangeable(const Call& call) {
  if (!tells_by_sizes(call.info) || writes_what_it_reads(call)) return {};
  Sizes sizes = sizes_to_exchange(call);
  return hides_a_bound(call, sizes) ? Sizes() : sizes;
}

}  // namespace

SmallerAnswer ask_kernel_on_smaller(const Call& call) {
  const Sizes sizes = all_lie_side_by_side(call) ? exchangeable(call) : Sizes();
  if (sizes.empty()) return {};
  SmallerAnswer answer = ask(call, sizes, 0);        // as indices they are within bounds
  if (answer.refused) answer = ask(call, sizes, 1);  // as divisors they are no zeros
  // (It may be a number that does not fit: the product of two sizes.)
  answer.refused = answer.refused && !has_other_numbers(call, sizes);
  return answer;
}

bool kernel_takes_smaller(const Call& call, const std::vector<c10::ScalarType>& dtypes) {
  const Sizes sizes = exchangeable(call);
  if (sizes.empty()) return false;
  Call small(call.info);
  fill_smaller(call, Exchange(sizes, 0), small);
  for (size_t i = 0; i < dtypes.size(); ++i)
    if (small.looks[i]) small.looks[i] = of_dtype(*small.looks[i], dtypes[i]);
  return kernel_can_be_tried(small) && (ask(small, 0).plan || ask(small, 1).plan);
}

}  // namespace lazyeng::record
