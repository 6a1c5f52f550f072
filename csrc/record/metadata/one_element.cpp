// csrc/record/metadata/one_element.cpp: which ops and arguments these are, and the dtypes found.
#include "csrc/record/metadata/one_element.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>

#include "csrc/record/metadata/doubts.h"
#include "csrc/record/metadata/kind_table.h"
#include "csrc/record/metadata/stand_ins.h"
#include "csrc/run/cores/width.h"
#include "csrc/run/executor.h"
#include "csrc/run/failures/ignored_warnings.h"
#include "csrc/run/failures/python_error.h"

namespace lazyeng::record {
namespace {

/// Of each result. Empty: the kernel refused, or made something else of one element.
using Dtypes = c10::SmallVector<c10::ScalarType, 2>;

KindTable<Dtypes>& found_dtypes() {
  static auto* const instance = new KindTable<Dtypes>;
  return *instance;
}

/// It makes tensors of its arguments' elements, whatever their values and sizes.
bool is_of_elements(const run::OpInfo& info) {
  return info.aten && !info.writes && !info.random && !info.data_dependent && !info.checks_values &&
         !info.trusts_contents && !info.returns.empty() && (info.pointwise || info.reduction) &&
         std::all_of(info.returns.begin(), info.returns.end(),
                     [](const run::ReturnInfo& result) {
                       return result.tensor && !result.list && !result.may_alias &&
                              result.written_arg < 0;
                     }) &&
         std::all_of(info.args.begin(), info.args.end(), [](const run::ArgInfo& arg) {
           return arg.kind == run::ArgKind::tensor || arg.kind == run::ArgKind::scalar ||
                  arg.kind == run::ArgKind::other;
         });
}

/// Contiguous arguments make contiguous results.
bool keeps_contiguous(const Call& call) {
  const c10::FunctionSchema& schema = call.info.handle.schema();
  const std::optional<int> format = schema.argumentIndexWithName("memory_format");
  if (!format || call.args[*format].isNone()) return true;
  const c10::MemoryFormat wanted = call.args[*format].toMemoryFormat();
  return wanted == c10::MemoryFormat::Preserve || wanted == c10::MemoryFormat::Contiguous;
}

/// The one look of all tensors that have dims. Null: there are several, or none.
const run::Geometry* common_look(const Call& call) {
  const run::Geometry* common = nullptr;
  for (const run::GeometryRef& look : call.looks) {
    if (!look) continue;
    if (!look->device().is_cpu() || look->data().conj || look->data().neg) return nullptr;
    if (look->sizes().empty()) continue;
    if (!has_usual_strides(*look) || look->numel() == 0) return nullptr;
    if (common && common->sizes() != look->sizes()) return nullptr;
    common = look.get();
  }
  return common;
}

Dtypes ask(const Call& call, size_t rank_of_results) {
  run::RealDispatch below;
  const run::OneCore one(at::get_num_threads());
  const run::IgnoredWarnings quiet;  // (a variance of one element)
  Dtypes dtypes;
  try {
    torch::jit::Stack stack = StandIns(call, StandIns::For::one_element, 1).arguments();
    call.info.handle.callBoxed(stack);
    for (const c10::IValue& result : stack) {
      const at::Tensor tensor = result.isTensor() ? result.toTensor() : at::Tensor();
      if (!tensor.defined() || tensor.layout() != c10::kStrided || !tensor.device().is_cpu() ||
          tensor.numel() != 1 || static_cast<size_t>(tensor.dim()) != rank_of_results ||
          tensor.is_conj() || tensor.is_neg())
        return {};
      dtypes.push_back(tensor.scalar_type());
    }
  } catch (const std::exception&) {  // the usual way tells why
    if (run::is_interrupt(std::current_exception())) throw;
    return {};
  }
  return dtypes;
}

}  // namespace

std::optional<c10::SmallVector<run::GeometryRef, 2>> told_by_one_element(const Call& call) {
  if (!is_of_elements(call.info) || !keeps_contiguous(call)) return std::nullopt;
  const run::Geometry* const common = common_look(call);
  PlanKey kind;
  if (!common || !make_kind_key(call, kind)) return std::nullopt;
  run::GeometryData look;
  if (call.info.pointwise) {
    look.sizes = common->data().sizes;
    look.strides = common->data().strides;
  }
  look.device = common->device();
  std::optional<Dtypes> dtypes = found_dtypes().find(kind);
  if (!dtypes) {
    dtypes = ask(call, look.sizes.size());
    found_dtypes().note(kind, *dtypes);
  }
  if (dtypes->size() != call.info.returns.size()) return std::nullopt;
  c10::SmallVector<run::GeometryRef, 2> results;
  for (const c10::ScalarType dtype : *dtypes) {
    look.dtype = dtype;
    results.push_back(run::intern(look));
  }
  return results;
}

}  // namespace lazyeng::record
