// csrc/record/metadata/scattered_sources.cpp: the view is made of a tensor without memory.
#include "csrc/record/metadata/scattered_sources.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>

#include "csrc/record/metadata/stand_ins.h"
#include "csrc/run/executor.h"
#include "csrc/run/failures/python_error.h"

namespace lazyeng::record {
namespace {

struct Scatter {
  std::string_view name;
  const char* view;  ///< whose arguments it has, with the source in the second place
  const char* overload;
};
constexpr std::array<Scatter, 3> kScatters = {{{"aten::select_scatter", "aten::select", "int"},
                                               {"aten::slice_scatter", "aten::slice", "Tensor"},
                                               {"aten::diagonal_scatter", "aten::diagonal", ""}}};

/// Undefined: there is no such view.
at::Tensor view_of_first(const Call& call, const Scatter& scatter) {
  const c10::OperatorHandle view =
      c10::Dispatcher::singleton().findSchemaOrThrow(scatter.view, scatter.overload);
  const run::Geometry& self = *call.looks[0];
  torch::jit::Stack stack = {
      run::tensor_over(no_memory(StandIns::For::kernel, self.extent_bytes()), self)};
  const size_t others = view.schema().arguments().size() - 1;
  stack.insert(stack.end(), call.args.begin() + 2,
               call.args.begin() + 2 + static_cast<ptrdiff_t>(others));
  const run::RealDispatch below;
  try {
    view.callBoxed(stack);
    return stack[0].toTensor();
  } catch (const std::exception&) {  // the run that follows raises eager's own words
    if (run::is_interrupt(std::current_exception())) throw;
    return {};
  }
}

}  // namespace

bool scattered_source_may_be_refused(const Call& call) {
  const auto* const scatter = std::ranges::find(kScatters, call.info.base, &Scatter::name);
  if (scatter == kScatters.end() || !call.looks[0] || !call.looks[1]) return false;
  const at::Tensor view = view_of_first(call, *scatter);
  return !view.defined() || view.sizes() != call.looks[1]->sizes();
}

}  // namespace lazyeng::record
