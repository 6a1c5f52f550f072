// csrc/record/probe.cpp: calling a kernel on stand-ins to hear whether it refuses.
#include "csrc/record/probe.h"

#include <mutex>
#include <unordered_map>

#include "csrc/record/infer.h"
#include "csrc/record/stand_ins.h"
#include "csrc/run/executor.h"

namespace lazyeng::record {
namespace {

constexpr size_t kMaxVerdicts = 1 << 14;

struct KeyHash {
  size_t operator()(const PlanKey& key) const { return hash_of(key); }
};

struct Verdicts {
  std::mutex mutex;
  std::unordered_map<PlanKey, bool, KeyHash> may_refuse;
};

Verdicts& verdicts() {
  static Verdicts* const instance = new Verdicts;
  return *instance;
}

/// Same dtype for all floating tensors, and one of those that every kernel is compiled for.
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

Trial try_kernel(const Call& call, StandIns::For whom, int integers) {
  run::RealDispatch below;
  try {
    torch::jit::Stack stack = StandIns(call, whom, integers).arguments();
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

bool ask_kernel(const Call& call) {
  const Trial trial = try_kernel(call, StandIns::For::one_element, 0);
  if (trial != Trial::fails) return trial == Trial::refused;
  // One element may simply be too few for the op.
  if (!kernel_can_be_tried(call)) return !ordinary_dtypes(call);
  return try_kernel(call, StandIns::For::kernel, 0) != Trial::works &&
         try_kernel(call, StandIns::For::kernel, 1) != Trial::works;
}

bool may_be_probed(const Call& call) {
  if (!call.info.aten || (call.info.random && !call.info.takes_generator)) return false;
  for (const run::GeometryRef& look : call.looks)
    if (look) return look->device().is_cpu();
  return false;
}

void note(const PlanKey& kind, bool may_refuse) {
  std::lock_guard lock(verdicts().mutex);
  if (verdicts().may_refuse.size() >= kMaxVerdicts) verdicts().may_refuse.clear();
  verdicts().may_refuse.insert_or_assign(kind, may_refuse);
}

}  // namespace

bool kernel_may_refuse(const Call& call) {
  PlanKey kind;
  if (!may_be_probed(call) || !make_kind_key(call, kind)) return false;
  {
    std::lock_guard lock(verdicts().mutex);
    auto known = verdicts().may_refuse.find(kind);
    if (known != verdicts().may_refuse.end()) return known->second;
  }
  const bool refuses = ask_kernel(call);
  note(kind, refuses);
  return refuses;
}

void note_kernel_accepted(const Call& call) {
  PlanKey kind;
  if (call.info.structured_meta && make_kind_key(call, kind)) note(kind, false);
}

}  // namespace lazyeng::record
