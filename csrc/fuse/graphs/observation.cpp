// csrc/fuse/graphs/observation.cpp: numbers, addresses, and who holds what.
#include "csrc/fuse/graphs/observation.h"

#include <ATen/Context.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "csrc/fuse/device/device_arguments.h"
#include "csrc/run/cores/finding.h"

namespace lazyeng::fuse {
namespace {

void add_settings(Key& words) {
  const at::Context& context = at::globalContext();
  const bool settings[] = {
      context.deterministicAlgorithms(),
      context.deterministicCuDNN(),
      context.benchmarkCuDNN(),
      context.userEnabledCuDNN(),
      context.userEnabledFlashSDP(),
      context.userEnabledMemEfficientSDP(),
      context.userEnabledMathSDP(),
      context.userEnabledCuDNNSDP(),
      context.deterministicFillUninitializedMemory(),
  };
  uint64_t word = 0;
  for (const bool setting : settings) word = word << 1 | uint64_t{setting};
  // (Not allowTF32CuBLAS() and its like, which raise where a program uses the newer settings.)
  for (const at::Float32Op op : {at::Float32Op::MATMUL, at::Float32Op::CONV, at::Float32Op::RNN})
    word = word << 4 | uint64_t(context.float32Precision(at::Float32Backend::CUDA, op));
  word = word << 2 | uint64_t(context.allowFP16ReductionCuBLAS());
  word = word << 2 | uint64_t(context.allowBF16ReductionCuBLAS());
  word = word << 1 | uint64_t{context.allowFP16AccumulationCuBLAS()};
  words.push_back(word);
  words.push_back(run::unread_settings());
}

/// What is no number is part of the node's plan.
void add_number(const c10::IValue& value, Key& words) {
  if (value.isDouble()) {
    words.push_back(std::bit_cast<uint64_t>(value.toDouble()));
  } else if (value.isInt()) {
    words.push_back(static_cast<uint64_t>(value.toInt()));
  } else if (value.isBool()) {
    words.push_back(value.toBool());
  } else if (value.isComplexDouble()) {
    words.push_back(std::bit_cast<uint64_t>(value.toComplexDouble().real()));
    words.push_back(std::bit_cast<uint64_t>(value.toComplexDouble().imag()));
  } else if (value.isDoubleList()) {
    for (const double element : value.toDoubleVector())
      words.push_back(std::bit_cast<uint64_t>(element));
  } else if (value.isIntList()) {
    for (const int64_t element : value.toIntVector())
      words.push_back(static_cast<uint64_t>(element));
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) add_number(element, words);
  }
}

/// A Python number among the tensors. False: it is something else.
bool add_raw(const at::Tensor& raw, Key& words) {
  if (!raw.unsafeGetTensorImpl()->is_wrapped_number() || !raw.device().is_cpu()) return false;
  uint64_t bits[2] = {};  // (of a complex number two)
  if (raw.itemsize() > sizeof bits) return false;
  std::memcpy(bits, raw.const_data_ptr(), raw.itemsize());
  words.insert(words.end(), {static_cast<uint64_t>(raw.scalar_type()), bits[0], bits[1]});
  return true;
}

bool add_numbers(const run::Node& node, Key& words) {
  for (const c10::IValue& arg : node.args) add_number(arg, words);
  for (const run::TensorArg& arg : node.tensors)
    if (arg.raw.defined() && !add_raw(arg.raw, words)) return false;
  return true;
}

bool reads_as_recorded(const run::Node& node) {
  try {
    node.check_plain_reads();
    return true;
  } catch (...) {
    return false;
  }
}

/// Who refers to the vars, of the segment's own ops.
class References {
 public:
  explicit References(Segment& segment) {
    std::unordered_map<const run::Value*, uint32_t> counts;
    segment.for_each_value([&](run::ValueRef& value, uint32_t) { ++counts[value.get()]; });
    for (const auto& [value, count] : counts) {
      OfVar& of = vars_[&value->var()];
      ++of.values;
      of.value_is_held |= value->use_count() != count;
    }
  }

  bool held_by_others(const run::StorageVar& var) const {
    if (var.kind() == engine::Var::Kind::resource) return false;  // (a generator, not drawn from)
    const auto found = vars_.find(&var);
    if (found == vars_.end()) return true;
    return found->second.value_is_held || var.use_count() != 1 + found->second.values;
  }

 private:
  struct OfVar {
    uint32_t values = 0;
    bool value_is_held = false;
  };
  std::unordered_map<const run::StorageVar*, OfVar> vars_;
};

}  // namespace

std::optional<Observation> observe(Segment& segment) {
  Observation seen;
  add_settings(seen.numbers);
  seen.ends.push_back(seen.numbers.size());
  for (const run::Node* node : segment.nodes()) {
    if (node->failure_of_forward() || !add_numbers(*node, seen.numbers) ||
        !reads_as_recorded(*node))
      return std::nullopt;
    seen.ends.push_back(seen.numbers.size());
  }
  const References references(segment);
  for (const engine::Access& claim : segment.claims()) {
    const auto& var = static_cast<const run::StorageVar&>(*claim.var);
    const c10::Storage& memory = var.engine_face();
    if (var.failure() || (!memory && var.exposed())) return std::nullopt;
    seen.addresses.push_back(memory ? memory_of(memory) : nullptr);
    seen.sizes.push_back(memory ? memory.nbytes() : 0);
    if (memory) seen.numbers.push_back(memory.nbytes());
    seen.written.push_back(claim.write);
    seen.held.push_back(!memory && references.held_by_others(var));
    // (An empty tensor's memory has no address.)
    if (memory && !seen.addresses.back()) return std::nullopt;
  }
  return seen;
}

bool has_settings_of(const Observation& before) {
  Key now;
  add_settings(now);
  return std::equal(now.begin(), now.end(), before.numbers.begin());
}

}  // namespace lazyeng::fuse
