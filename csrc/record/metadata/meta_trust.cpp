// csrc/record/metadata/meta_trust.cpp: what runs have shown of meta functions and smaller tensors.
#include "csrc/record/metadata/meta_trust.h"

#include <algorithm>
#include <numeric>

#include "csrc/record/metadata/doubts.h"
#include "csrc/record/metadata/kind_table.h"
#include "csrc/record/thread_mode.h"
#include "csrc/run/python_ref.h"

namespace lazyeng::record {
namespace {

/// What is known of calls of one kind.
struct MetaFinding {
  /// Plans learned from runs. The meta function is not asked before there are a few: most programs
  /// have few shapes, and the first that is written in Python takes a second to import.
  uint8_t runs = 0;
  uint8_t agreed = 0;
  enum : uint8_t { open, right, wrong } verdict = open;
};
constexpr uint8_t kRunsBeforeMeta = 6;
/// So many runs of different sizes must agree where strides are odd.
constexpr uint8_t kOddRunsThatAgree = 3;

KindTable<MetaFinding>& findings() {
  static auto* const instance = new KindTable<MetaFinding>;
  return *instance;
}

/// A dim of one element may have any stride, and broadcasting makes such dims.
bool has_odd_strides(const Call& call) {
  return std::any_of(call.looks.begin(), call.looks.end(), [](const run::GeometryRef& look) {
    return look && !has_usual_strides(*look);
  });
}

/// The order of the strides, and of each dim whether it has one element, is expanded, and lies
/// without a gap around the next.
void add_stride_pattern(const run::Geometry& look, PlanKey& key) {
  const auto sizes = look.sizes(), strides = look.strides();
  c10::SmallVector<size_t, 8> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return strides[a] > strides[b]; });
  for (size_t i = 0; i < order.size(); ++i) {
    const size_t d = order[i];
    const int64_t packed =
        i + 1 < order.size() ? strides[order[i + 1]] * sizes[order[i + 1]] : int64_t{1};
    key.push_back(uint64_t{d} << 3 | (sizes[d] == 1) << 2 | (strides[d] == 0) << 1 |
                  (strides[d] == packed));
  }
}

bool make_key(const Call& call, bool odd, PlanKey& key) {
  if (!make_kind_key(call, key)) return false;
  if (odd)
    for (const run::GeometryRef& look : call.looks)
      if (look) add_stride_pattern(*look, key);
  return true;
}

/// Those that are written in Python import some 800 modules when one is asked first.
bool python_metas_have_run() {
  static std::atomic<bool> loaded{false};
  if (loaded.load(std::memory_order_relaxed)) return true;
  const run::Gil gil;
  PyObject* const modules = PyImport_GetModuleDict();  // borrowed
  loaded = PyDict_GetItemString(modules, "torch.fx.experimental.symbolic_shapes") != nullptr;
  return loaded;
}

/// In deferred mode nothing may run at the call, so a meta function is believed unheard; not about
/// narrow dtypes, of which most of what is known to be wrong is said, nor complex ones, or integers
/// alone, which many kernels do not have.
bool has_to_do(const Call& call) {
  if (thread_mode().mode != Mode::deferred || !call.info.aten) return false;
  bool floats = false;
  for (const run::GeometryRef& look : call.looks) {
    if (!look || look->data().wrapped_number || c10::isIntegralType(look->dtype(), true)) continue;
    if (look->dtype() != c10::kFloat && look->dtype() != c10::kDouble) return false;
    floats = true;
  }
  return floats;
}

}  // namespace

bool meta_is_believed(const Call& call) {
  const bool odd = has_odd_strides(call);
  // (Those of prims stand beside what prims are made of, and may be wrong all the same.)
  if (!odd && call.info.made_of_ops && call.info.aten &&
      (call.info.cpp_meta || python_metas_have_run()))
    return true;
  PlanKey kind;
  const bool unheard = !odd && has_to_do(call);
  if (!make_key(call, odd, kind)) return unheard;
  const std::optional<MetaFinding> found = findings().find(kind);
  return found && found->verdict != MetaFinding::open ? found->verdict == MetaFinding::right
                                                      : unheard;
}

void note_run(const Call& call, const std::function<bool(bool exactly)>& agrees) {
  const bool odd = has_odd_strides(call);
  PlanKey kind;
  if (!make_key(call, odd, kind)) return;
  MetaFinding finding = findings().find(kind).value_or(MetaFinding());
  if (finding.verdict != MetaFinding::open) return;
  if (++finding.runs >= kRunsBeforeMeta) {
    if (!agrees(odd))
      finding.verdict = MetaFinding::wrong;
    else if (++finding.agreed >= (odd ? kOddRunsThatAgree : 1))
      finding.verdict = MetaFinding::right;
  }
  findings().note(kind, finding);
}

namespace {

/// What runs have shown of the answers for smaller tensors.
struct SmallerFinding {
  uint8_t agreed = 0;
  bool wrong = false;
};
constexpr uint8_t kRunsThatAgree = 2;

KindTable<SmallerFinding>& smaller_findings() {
  static auto* const instance = new KindTable<SmallerFinding>;
  return *instance;
}

SmallerFinding smaller_finding(const Call& call) {
  PlanKey kind;
  if (!make_kind_key(call, kind)) return {.wrong = true};
  return smaller_findings().find(kind).value_or(SmallerFinding());
}

/// In mode deferred nothing may run at the call.
bool believed_unheard(const Call& call) {
  return thread_mode().mode == Mode::deferred || call.info.made_of_ops;
}

}  // namespace

bool smaller_may_be_asked(const Call& call) { return !smaller_finding(call).wrong; }

bool smaller_is_believed(const Call& call) {
  const SmallerFinding found = smaller_finding(call);
  return !found.wrong && (found.agreed >= kRunsThatAgree || believed_unheard(call));
}

void note_smaller(const Call& call, bool agrees) {
  PlanKey kind;
  if (!make_kind_key(call, kind)) return;
  SmallerFinding finding = smaller_findings().find(kind).value_or(SmallerFinding());
  if (!agrees) finding.wrong = true;
  if (finding.agreed < kRunsThatAgree) ++finding.agreed;
  smaller_findings().note(kind, finding);
}

}  // namespace lazyeng::record
