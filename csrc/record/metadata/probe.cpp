// csrc/record/metadata/probe.cpp: calling a kernel on stand-ins to hear whether it refuses.
#include "csrc/record/metadata/probe.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "csrc/record/metadata/kind_table.h"
#include "csrc/record/metadata/smaller.h"
#include "csrc/record/metadata/stand_ins.h"
#include "csrc/record/thread_mode.h"
#include "csrc/run/cores/width.h"
#include "csrc/run/executor.h"
#include "csrc/run/failures/python_error.h"

namespace lazyeng::record {
namespace {

/// True: may refuse.
KindTable<bool>& refusals() {
  static auto* const instance = new KindTable<bool>;
  return *instance;
}

/// True: the kernel refuses these dtypes, and would take the usual ones.
KindTable<bool>& refused_dtypes() {
  static auto* const instance = new KindTable<bool>;
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

bool has_only(const Call& call, const std::vector<c10::ScalarType>& dtypes) {
  for (size_t i = 0; i < dtypes.size(); ++i)
    if (call.looks[i] && call.looks[i]->dtype() != dtypes[i]) return false;
  return true;
}

/// What one element shows as well as many: a number does not fit, or is no range to draw from.
bool is_about_numbers(const Call& call, std::string_view error) {
  return (call.info.random && call.info.writes) ||
         error.find("without overflow") != std::string_view::npos;
}

enum class Trial : uint8_t { works, refused, fails };

Trial try_kernel(const Call& call, StandIns::For whom, int integers) {
  run::RealDispatch below;
  const run::OneCore one(at::get_num_threads());
  try {
    torch::jit::Stack stack = StandIns(call, whom, integers).arguments();
    call.info.handle.callBoxed(stack);
    return Trial::works;
  } catch (const c10::NotImplementedError&) {  // «"bitwise_and_cpu" not implemented for 'Float'»
    return Trial::refused;
  } catch (const c10::IndexError&) {  // a dim out of range: the stand-ins have the true rank
    return Trial::refused;
  } catch (const std::exception& error) {
    if (run::is_interrupt(std::current_exception())) throw;
    return is_about_numbers(call, error.what()) ? Trial::refused : Trial::fails;
  }
}

/// (0 for indices, 1 for divisors.)
bool takes_one_element(const Call& call, StandIns::For whom) {
  return try_kernel(call, whom, 0) == Trial::works || try_kernel(call, whom, 1) == Trial::works;
}

/// Few kernels have these, and some of one element are but copies.
bool has_float8(const Call& call) {
  return std::ranges::any_of(call.looks, [](const run::GeometryRef& look) {
    return look && c10::isFloat8Type(look->dtype());
  });
}

/// Is it for their dtypes that it refuses those of one element? That may be too few of them
/// (layer_norm says how many it wants). Nothing: no trial tells.
std::optional<bool> refuses_dtypes(const Call& call) {
  const std::vector<c10::ScalarType> usual = usual_dtypes(call), floats = float_dtypes(call);
  const bool is_usual = has_only(call, usual), is_floats = has_only(call, floats);
  if (is_usual && is_floats) return false;
  if (takes_one_element(call, StandIns::For::one_element))
    return has_float8(call) ? std::nullopt : std::optional(false);
  if ((!is_usual && takes_one_element(call, StandIns::For::usual_dtypes)) ||
      (!is_floats && takes_one_element(call, StandIns::For::floats)))
    return true;
  if (kernel_takes_smaller(call, {})) return false;
  if ((!is_usual && kernel_takes_smaller(call, usual)) ||
      (!is_floats && kernel_takes_smaller(call, floats)))
    return true;
  return std::nullopt;
}

bool is_named_seldom(c10::ScalarType dtype) {
  return dtype != c10::kFloat && dtype != c10::kDouble && dtype != c10::kLong && dtype != c10::kInt;
}

bool names_rare_dtype(const Call& call) {
  const int dtype = call.info.dtype_arg;
  return dtype >= 0 && call.args[dtype].isInt() &&
         is_named_seldom(static_cast<c10::ScalarType>(call.args[dtype].toInt()));
}

bool ask_kernel(const Call& call) {
  const Trial trial = try_kernel(call, StandIns::For::one_element, 0);
  if (trial == Trial::works && has_float8(call)) return true;
  if (trial != Trial::fails) return trial == Trial::refused;
  // One element may simply be too few for the op.
  if (!kernel_can_be_tried(call))
    return !ordinary_dtypes(call) || refuses_dtypes(call).value_or(true);
  return try_kernel(call, StandIns::For::kernel, 0) != Trial::works &&
         try_kernel(call, StandIns::For::kernel, 1) != Trial::works;
}

bool runs_on_cpu(const Call& call) {
  for (const run::GeometryRef& look : call.looks)
    if (look) return look->device().is_cpu();
  return false;
}

bool may_be_probed(const Call& call) {
  return call.info.aten && (!call.info.random || call.info.takes_generator) && runs_on_cpu(call);
}

bool has_out(const Call& call) {
  const std::vector<c10::Argument>& arguments = call.info.handle.schema().arguments();
  return std::any_of(arguments.begin(), arguments.end(),
                     [](const c10::Argument& argument) { return argument.is_out(); });
}

/// What takes a float8 tensor of one element, or rows of one, may have copied it.
bool tells_little(const Call& call) {
  const auto has_one = [](const run::GeometryRef& look) {
    return look && std::find(look->sizes().begin(), look->sizes().end(), 1) != look->sizes().end();
  };
  return has_float8(call) && std::ranges::any_of(call.looks, has_one);
}

}  // namespace

bool some_are_empty(const Call& call) {
  return std::ranges::any_of(
      call.looks, [](const run::GeometryRef& look) { return look && look->numel() == 0; });
}

bool kernel_may_refuse(const Call& call) {
  PlanKey kind;
  if (!may_be_probed(call) || !make_kind_key(call, kind)) return false;
  if (const std::optional<bool> known = refusals().find(kind)) return *known;
  const bool refuses = call.info.trusts_contents ? !ordinary_dtypes(call) : ask_kernel(call);
  if (!some_are_empty(call)) refusals().note(kind, refuses);
  return refuses;
}

bool kernel_may_refuse_dtypes(const Call& call) {
  PlanKey kind;
  if (!may_be_probed(call) || call.info.trusts_contents) return false;
  const bool usual = ordinary_dtypes(call) && has_only(call, usual_dtypes(call));
  const bool named = names_rare_dtype(call);
  if ((usual && !named) || !make_kind_key(call, kind)) return false;
  if (const std::optional<bool> known = refused_dtypes().find(kind)) return *known;
  const std::optional<bool> refuses = usual ? false : refuses_dtypes(call);
  if (!refuses) return true;
  const bool all =
      *refuses || (named && try_kernel(call, StandIns::For::one_element, 0) == Trial::refused);
  if (!some_are_empty(call)) refused_dtypes().note(kind, all);
  return all;
}

bool out_may_be_refused(const Call& call) {
  PlanKey kind;
  if (!call.info.aten || !has_out(call) || !make_kind_key(call, kind)) return false;
  if (const std::optional<bool> known = refusals().find(kind)) return *known;
  if (thread_mode().mode != Mode::deferred) return true;
  // (There nothing may run. The results that sort and its like are given need not have one dtype.)
  return !ordinary_dtypes(call) ||
         (may_be_probed(call) && !call.info.trusts_contents &&
          try_kernel(call, StandIns::For::one_element, 0) != Trial::works);
}

void note_kernel_accepted(const Call& call) {
  if (some_are_empty(call) || tells_little(call)) return;
  const bool asked = call.info.structured_meta || call.info.pointwise || has_out(call);
  PlanKey kind;
  if (!make_kind_key(call, kind)) return;
  if (asked) refusals().note(kind, false);
  if (!refused_dtypes().find(kind)) refused_dtypes().note(kind, false);
}

}  // namespace lazyeng::record
