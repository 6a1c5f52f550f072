// csrc/fuse/trials.cpp: torch's kernels and the steps that stand for them, on the same numbers.
#include "csrc/fuse/trials.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <vector>

#include "csrc/fuse/tile_program.h"
#include "csrc/fuse/torch_functions.h"
#include "csrc/run/as_engine_thread.h"
#include "csrc/run/ignored_warnings.h"

namespace lazyeng::fuse {
namespace {

using Tensors = std::vector<at::Tensor>;

/// How torch computes what an opcode stands for.
struct Oracle {
  Opcode opcode;
  size_t tensors;
  bool number;  ///< and a number, the last input of the step
  at::Tensor (*eager)(const Tensors& in, const at::Scalar& number);
};

#define LAZYENG_FUNCTION(name) \
  {Opcode::name, 1, false, [](const Tensors& in, const at::Scalar&) { return at::name(in[0]); }}
#define LAZYENG_OF_RESULT(name) \
  {Opcode::name, 2, false,      \
   [](const Tensors& in, const at::Scalar&) { return at::name(in[0], in[1]); }}

constexpr Oracle kOracles[] = {
    LAZYENG_FUNCTION(sqrt),
    LAZYENG_FUNCTION(exp),
    LAZYENG_FUNCTION(exp2),
    LAZYENG_FUNCTION(expm1),
    LAZYENG_FUNCTION(log),
    LAZYENG_FUNCTION(log2),
    LAZYENG_FUNCTION(log10),
    LAZYENG_FUNCTION(log1p),
    LAZYENG_FUNCTION(sin),
    LAZYENG_FUNCTION(cos),
    LAZYENG_FUNCTION(tan),
    LAZYENG_FUNCTION(tanh),
    LAZYENG_FUNCTION(sinh),
    LAZYENG_FUNCTION(cosh),
    LAZYENG_FUNCTION(erf),
    LAZYENG_FUNCTION(erfc),
    LAZYENG_FUNCTION(sigmoid),
    LAZYENG_FUNCTION(silu),
    LAZYENG_FUNCTION(hardswish),
    LAZYENG_FUNCTION(hardsigmoid),
    LAZYENG_OF_RESULT(tanh_backward),
    LAZYENG_OF_RESULT(silu_backward),
    {Opcode::add_scaled, 2, true,
     [](const Tensors& in, const at::Scalar& n) { return at::add(in[0], in[1], n); }},
    {Opcode::addcmul, 3, true,
     [](const Tensors& in, const at::Scalar& n) { return at::addcmul(in[0], in[1], in[2], n); }},
    {Opcode::addcdiv, 3, true,
     [](const Tensors& in, const at::Scalar& n) { return at::addcdiv(in[0], in[1], in[2], n); }},
    {Opcode::lerp, 2, true,
     [](const Tensors& in, const at::Scalar& n) { return at::lerp(in[0], in[1], n); }},
    {Opcode::lerp, 3, false,
     [](const Tensors& in, const at::Scalar&) { return at::lerp(in[0], in[1], in[2]); }},
};
#undef LAZYENG_FUNCTION
#undef LAZYENG_OF_RESULT

constexpr double kNumbers[] = {1, 0.3, 0.7, -2.5};
constexpr int64_t kCount = 4096 + 37;

struct Piece {
  int64_t begin, length;
};
constexpr Piece kPieces[] = {{1, 1}, {3, 7}, {5, 17}, {2, 33}, {64, 100}, {9, 1000}};

// ---- numbers

/// Those with a meaning of their own first, then some of every size, most of them near 1.
template <class T>
at::Tensor numbers(uint64_t seed) {
  using Limits = std::numeric_limits<T>;
  constexpr T kSpecial[] = {0,
                            -T(0),
                            1,
                            -1,
                            T(0.5),
                            Limits::infinity(),
                            -Limits::infinity(),
                            Limits::quiet_NaN(),
                            Limits::denorm_min(),
                            -Limits::denorm_min(),
                            Limits::min(),
                            Limits::max(),
                            Limits::lowest()};
  at::Tensor made = at::empty({kCount}, at::CppTypeToScalarType<T>::value);
  T* const data = made.mutable_data_ptr<T>();
  uint64_t state = seed;
  const auto next = [&state] {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return state >> 33;
  };
  for (int64_t i = 0; i < kCount; ++i) {
    const uint64_t kind = next();
    if (kind % 32 == 0) {
      data[i] = kSpecial[next() % std::size(kSpecial)];
      continue;
    }
    const int range = kind % 4 == 0 ? Limits::max_exponent - 1 : 4;
    const auto exponent = static_cast<int>(next() % (2 * static_cast<uint64_t>(range) + 1)) - range;
    const T fraction = static_cast<T>(next()) / static_cast<T>(uint64_t{1} << 31) +
                       static_cast<T>(next()) / static_cast<T>(uint64_t{1} << 62);
    data[i] = std::ldexp(1 + fraction, exponent) * (kind & 64 ? 1 : -1);
  }
  return made;
}

template <class T>
bool same_bits(const at::Tensor& ours, const at::Tensor& theirs) {
  const at::Tensor dense = theirs.contiguous();
  if (dense.sizes() != ours.sizes() || dense.scalar_type() != ours.scalar_type()) return false;
  const T* const a = ours.const_data_ptr<T>();
  const T* const b = dense.const_data_ptr<T>();
  for (int64_t i = 0; i < ours.numel(); ++i)
    if (std::memcmp(a + i, b + i, sizeof(T)) != 0 && !(std::isnan(a[i]) && std::isnan(b[i])))
      return false;
  return true;
}

// ---- both ways

/// What the step makes of contiguous tensors of one length.
template <class T>
at::Tensor by_program(const Oracle& oracle, const Tensors& in, double number) {
  constexpr Type type = std::is_same_v<T, float> ? Type::f32 : Type::f64;
  ProgramBuilder builder(best_kernels(), in[0].numel(), 0, {});
  RegisterId regs[kMaxInputs] = {};
  Bindings bindings;
  size_t count = 0;
  for (const at::Tensor& tensor : in) {
    regs[count++] = builder.load({.type = type, .strides = {}});
    bindings.tensors.push_back(static_cast<char*>(tensor.mutable_data_ptr()));
  }
  if (oracle.number) regs[count++] = builder.parameter(type);
  const Kernel torchs = torch_function(oracle.opcode, type);
  const auto step = [&](std::initializer_list<RegisterId> inputs) {
    return builder.step(oracle.opcode, type, type, inputs, torchs);
  };
  const RegisterId made = count == 1   ? step({regs[0]})
                          : count == 2 ? step({regs[0], regs[1]})
                          : count == 3 ? step({regs[0], regs[1], regs[2]})
                                       : step({regs[0], regs[1], regs[2], regs[3]});
  builder.store(made, {.type = type, .strides = {}});
  if (!builder.ok()) return {};
  const Program program = std::move(builder).finish();
  at::Tensor result = at::empty_like(in[0]);
  bindings.tensors.push_back(static_cast<char*>(result.mutable_data_ptr()));
  alignas(64) T splat[kSplatBytes / sizeof(T)];
  std::fill(std::begin(splat), std::end(splat), static_cast<T>(number));
  bindings.splats = reinterpret_cast<char*>(splat);
  run_program(program, bindings, /*wide=*/false);
  return result;
}

Tensors pieces(const Tensors& in, Piece piece) {
  Tensors cut;
  for (const at::Tensor& tensor : in) cut.push_back(tensor.narrow(0, piece.begin, piece.length));
  return cut;
}

at::Tensor with_gaps(const at::Tensor& tensor) {
  return at::stack({tensor, tensor}, 1).select(1, 0);
}

template <class T>
bool agree_on_dense(const Oracle& oracle, const Tensors& in, double number) {
  const at::Tensor ours = by_program<T>(oracle, in, number);
  if (!ours.defined() || !same_bits<T>(ours, oracle.eager(in, number))) return false;
  for (const Piece& piece : kPieces)
    if (!same_bits<T>(ours.narrow(0, piece.begin, piece.length),
                      oracle.eager(pieces(in, piece), number)))
      return false;
  return true;
}

/// Of these torch has versions that go element by element.
template <class T>
bool agree_on_others(const Oracle& oracle, const Tensors& in, double number) {
  const at::Tensor ours = by_program<T>(oracle, in, number);
  Tensors gaps;
  for (const at::Tensor& tensor : in) gaps.push_back(with_gaps(tensor));
  if (!same_bits<T>(ours, oracle.eager(gaps, number))) return false;
  for (size_t i = 0; i < in.size() && in.size() > 1; ++i) {
    Tensors expanded = in, dense = in;
    expanded[i] = in[i].narrow(0, kCount - 1, 1).expand({kCount});
    dense[i] = expanded[i].contiguous();
    if (!same_bits<T>(by_program<T>(oracle, dense, number), oracle.eager(expanded, number)))
      return false;
  }
  return true;
}

enum class Verdict : uint8_t { untried, wanted, same, same_if_dense, other };

template <class T>
Verdict try_oracle(const Oracle& oracle) {
  Tensors in;
  for (size_t i = 0; i < oracle.tensors; ++i) in.push_back(numbers<T>(i + 1));
  bool others = true;
  for (const double number : kNumbers) {
    if (!agree_on_dense<T>(oracle, in, number)) return Verdict::other;
    others = others && agree_on_others<T>(oracle, in, number);
    if (!oracle.number) break;
  }
  return others ? Verdict::same : Verdict::same_if_dense;
}

// ---- what was found

constexpr size_t kOpcodes = static_cast<size_t>(Opcode::cast) + 1;
std::array<std::array<std::atomic<Verdict>, 2>, kOpcodes> verdicts{};

std::atomic<Verdict>* verdict(Opcode opcode, c10::ScalarType dtype) {
  if (dtype != c10::kFloat && dtype != c10::kDouble) return nullptr;
  return &verdicts[static_cast<size_t>(opcode)][dtype == c10::kDouble];
}

std::atomic<bool> any_wanted{false};
std::atomic<uint64_t> due_at{0};  // the number of an op; 0: nobody has looked since it was wanted
std::atomic<uint64_t> ops_before{kOpsBefore};

/// The step of the rule that has to be tried.
Opcode opcode_of(const OpRule& rule) {
  const bool scaled = rule.form == Form::binary_scaled || rule.form == Form::reversed;
  return scaled ? Opcode::add_scaled : rule.opcode;
}

Verdict find_out(Opcode opcode, c10::ScalarType dtype) {
  Verdict found = Verdict::untried;
  try {
    const run::AsEngineThread below;
    const run::IgnoredWarnings quiet;
    for (const Oracle& oracle : kOracles)
      if (oracle.opcode == opcode)
        found = std::max(
            found, dtype == c10::kFloat ? try_oracle<float>(oracle) : try_oracle<double>(oracle));
  } catch (const std::exception&) {
    return Verdict::other;  // memory is short
  }
  return found == Verdict::untried ? Verdict::other : found;  // (no oracle)
}

}  // namespace

void want_trial(const run::OpInfo& info, c10::ScalarType dtype) {
  const OpRule* rule = rule_of(info);
  if (!rule || allows_inexact(c10::kCPU)) return;
  std::atomic<Verdict>* const known = verdict(opcode_of(*rule), dtype);
  if (!known || known->load(std::memory_order_relaxed) != Verdict::untried) return;
  known->store(Verdict::wanted, std::memory_order_relaxed);
  any_wanted.store(true, std::memory_order_release);
  if (ops_before.load(std::memory_order_relaxed) == 0) run_trials();
}

bool trials_are_due(uint64_t number) {
  if (!any_wanted.load(std::memory_order_relaxed)) return false;
  uint64_t due = due_at.load(std::memory_order_relaxed);
  if (due == 0) {
    due = number + ops_before.load(std::memory_order_relaxed);
    due_at.store(due, std::memory_order_relaxed);
  }
  return number >= due;
}

void run_trials() {
  if (!any_wanted.exchange(false, std::memory_order_acquire)) return;  // another thread does
  due_at.store(0, std::memory_order_relaxed);
  for (size_t opcode = 0; opcode < kOpcodes; ++opcode)
    for (const c10::ScalarType dtype : {c10::kFloat, c10::kDouble}) {
      std::atomic<Verdict>* const known = verdict(static_cast<Opcode>(opcode), dtype);
      if (known->load(std::memory_order_relaxed) == Verdict::wanted)
        known->store(find_out(static_cast<Opcode>(opcode), dtype), std::memory_order_relaxed);
    }
}

void set_ops_before_trials(uint64_t ops) { ops_before.store(ops, std::memory_order_relaxed); }

bool gives_torchs_bits(Opcode opcode, c10::ScalarType dtype, bool dense) {
  const std::atomic<Verdict>* const known = verdict(opcode, dtype);
  if (!known) return false;
  const Verdict found = known->load(std::memory_order_relaxed);
  return found == Verdict::same || (dense && found == Verdict::same_if_dense);
}

}  // namespace lazyeng::fuse
