// csrc/record/probe.cpp: calling a kernel on stand-ins of one element.
#include "csrc/record/probe.h"

#include <ATen/ATen.h>

#include <mutex>
#include <unordered_map>

#include "csrc/run/executor.h"

namespace lazyeng::record {
namespace {

using Signature = std::vector<uint64_t>;  // op, then dtype and kind of each tensor

struct SignatureHash {
  size_t operator()(const Signature& signature) const {
    uint64_t hash = signature.size();
    for (uint64_t word : signature)
      hash = (hash ^ word) * 0x9E3779B97F4A7C15ull, hash ^= hash >> 29;
    return hash;
  }
};

struct Verdicts {
  std::mutex mutex;
  std::unordered_map<Signature, bool, SignatureHash> may_refuse;
};

Verdicts& verdicts() {
  static Verdicts* const instance = new Verdicts;
  return *instance;
}

Signature signature_of(const Call& call) {
  Signature signature{reinterpret_cast<uint64_t>(&call.info)};
  for (const run::GeometryRef& look : call.looks)
    signature.push_back(look ? static_cast<uint64_t>(look->dtype()) << 8 |
                                   look->data().wrapped_number << 7 | look->sizes().size()
                             : ~uint64_t{0});
  for (const c10::IValue& arg :
       call.args)  // dims: a meta function may leave their range to the kernel
    if (arg.isInt()) signature.push_back(static_cast<uint64_t>(arg.toInt()));
  return signature;
}

/// Ones for floating numbers (probabilities, divisors), `integers` for integers (0: indices, 1:
/// divisors).
at::Tensor stand_in(const run::Geometry& g, bool one_element, int integers) {
  const std::vector<int64_t> sizes =
      one_element ? std::vector<int64_t>(g.sizes().size(), 1) : g.sizes().vec();
  const auto options = at::TensorOptions().dtype(g.dtype()).device(g.device());
  at::Tensor tensor = c10::isIntegralType(g.dtype(), true) ? at::full(sizes, integers, options)
                                                           : at::ones(sizes, options);
  if (g.data().wrapped_number) tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

torch::jit::Stack stand_in_arguments(const Call& call, int integers) {
  torch::jit::Stack stack;
  size_t next = 0;
  const auto tensor = [&] {
    const run::GeometryRef& look = call.looks[next++];
    return look ? stand_in(*look, call.info.structured_meta, integers) : at::Tensor();
  };
  for (size_t i = 0; i < call.args.size(); ++i) {
    const c10::IValue& arg = call.args[i];
    const run::ArgKind kind = call.info.args[i].kind;
    if (kind == run::ArgKind::tensor) {
      at::Tensor made = tensor();
      stack.push_back(made.defined() ? c10::IValue(made) : arg);
    } else if (kind == run::ArgKind::tensor_list && arg.isInt()) {
      c10::List<at::Tensor> list;
      for (int64_t k = 0; k < arg.toInt(); ++k) list.push_back(tensor());
      stack.emplace_back(std::move(list));
    } else if (kind == run::ArgKind::optional_tensor_list && arg.isInt()) {
      c10::List<std::optional<at::Tensor>> list;
      for (int64_t k = 0; k < arg.toInt(); ++k) {
        at::Tensor made = tensor();
        list.push_back(made.defined() ? std::optional<at::Tensor>(made) : std::nullopt);
      }
      stack.emplace_back(std::move(list));
    } else if (kind == run::ArgKind::generator) {
      stack.emplace_back(at::detail::createCPUGenerator());  // no draw from the user's generator
    } else {
      stack.push_back(arg);
    }
  }
  return stack;
}

/// Same dtype for all floating tensors, and one of those that every kernel is compiled for: when
/// the stand-ins do not fit the op, this is taken as fine.
bool ordinary_dtypes(const Call& call) {
  std::optional<c10::ScalarType> seen;
  for (const run::GeometryRef& look : call.looks) {
    if (!look || look->data().wrapped_number || c10::isIntegralType(look->dtype(), false)) continue;
    if (look->dtype() != c10::kFloat && look->dtype() != c10::kDouble) return false;
    if (seen && *seen != look->dtype()) return false;
    seen = look->dtype();
  }
  return seen.has_value();
}

enum class Trial : uint8_t { works, refused, fails };

Trial try_stand_ins(const Call& call, int integers) {
  run::RealDispatch below;
  try {
    torch::jit::Stack stack = stand_in_arguments(call, integers);
    call.info.handle.callBoxed(stack);
    return Trial::works;
  } catch (const c10::NotImplementedError&) {  // «"bitwise_and_cpu" not implemented for 'Float'»
    return Trial::refused;
  } catch (const c10::IndexError&) {  // a dim out of range: the stand-ins have the true rank
    return Trial::refused;
  } catch (const std::exception&) {
    return Trial::fails;
  }
}

/// Kernels of other namespaces may have effects; draws from a generator that is no argument, and
/// checks of values, must not happen twice. What these refuse is then raised when they run.
bool may_be_probed(const Call& call) {
  if (!call.info.aten || call.info.checks_values) return false;
  if (call.info.random && !call.info.takes_generator) return false;
  for (const run::GeometryRef& look : call.looks)
    if (look) return look->device().is_cpu();
  return false;
}

constexpr int64_t kMaxElements = 1 << 16;  // of all stand-ins together

/// Structured ops check the shapes of what they get: one element is enough. Others may trust that
/// their arguments fit each other, so theirs get the recorded sizes; and backward functions and
/// wrappers of vendor libraries trust too much (the size of a workspace).
bool fits_stand_ins(const Call& call) {
  if (call.info.structured_meta) return true;
  for (const char* trusting : {"backward", "mkldnn", "cudnn", "miopen", "onednn"})
    if (call.info.short_name.find(trusting) != std::string::npos) return false;
  int64_t elements = 0;
  for (const run::GeometryRef& look : call.looks)
    if (look) elements += look->numel();
  return elements <= kMaxElements;
}

}  // namespace

bool kernel_may_refuse(const Call& call) {
  if (!may_be_probed(call)) return false;
  const Signature signature = signature_of(call);
  {
    std::lock_guard lock(verdicts().mutex);
    auto known = verdicts().may_refuse.find(signature);
    if (known != verdicts().may_refuse.end()) return known->second;
  }
  // One element may simply be too small for the op: then only unusual dtypes are suspect.
  const bool whole = fits_stand_ins(call) && !call.info.structured_meta;
  Trial trial = fits_stand_ins(call) ? try_stand_ins(call, 0) : Trial::fails;
  if (whole && trial != Trial::works) trial = try_stand_ins(call, 1);
  const bool refuses =
      trial == Trial::refused || (trial == Trial::fails && (whole || !ordinary_dtypes(call)));
  std::lock_guard lock(verdicts().mutex);
  verdicts().may_refuse.emplace(signature, refuses);
  return refuses;
}

void note_kernel_accepted(const Call& call) {
  std::lock_guard lock(verdicts().mutex);
  auto known = verdicts().may_refuse.find(signature_of(call));
  if (known != verdicts().may_refuse.end()) known->second = false;
}

}  // namespace lazyeng::record
