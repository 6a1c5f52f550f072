// csrc/bindings/programs.cpp: registers, tensors, parameters, steps.
#include "csrc/bindings/programs.h"

#include <torch/csrc/DynamicTypes.h>

namespace lazyeng::bindings {
namespace {

const char* name_of(fuse::Rate rate) {
  return rate == fuse::Rate::element ? "element" : rate == fuse::Rate::row ? "row" : "column";
}

/// (kind, type, index, rate)
py::list registers(const fuse::Program& program) {
  using Kind = fuse::Register::Kind;
  py::list rows;
  for (const fuse::Register& reg : program.registers) {
    const char* kind = reg.kind == Kind::tensor      ? "tensor"
                       : reg.kind == Kind::parameter ? "parameter"
                                                     : "scratch";  // (or nowhere, on the CPU)
    rows.append(py::make_tuple(kind, fuse::name_of(reg.type), reg.index, name_of(reg.rate)));
  }
  return rows;
}

/// (type, strides, rate, fresh)
py::list tensors(const fuse::GroupPlan& plan) {
  py::list rows;
  for (size_t t = 0; t < plan.tensors.size(); ++t) {
    const fuse::TensorAccess& tensor = plan.program.tensors[t];
    rows.append(py::make_tuple(fuse::name_of(tensor.type), dims(tensor.strides),
                               name_of(tensor.rate), plan.tensors[t].fresh));
  }
  return rows;
}

/// (type, rounded to, kind, the constant, the dtype in memory, negate, no_nan)
py::list parameters(const fuse::GroupPlan& plan) {
  using Kind = fuse::ParameterSource::Kind;
  py::list rows;
  for (size_t p = 0; p < plan.parameters.size(); ++p) {
    const fuse::ParameterSource& source = plan.parameters[p];
    const char* kind = source.kind == Kind::constant ? "constant"
                       : source.kind == Kind::value  ? "value"
                                                     : "number";
    rows.append(py::make_tuple(fuse::name_of(plan.program.parameters[p]), dtype_object(source.as),
                               kind, source.constant, dtype_object(source.stored), source.negate,
                               source.no_nan));
  }
  return rows;
}

/// The operation, or the fold of each row. (A sum in the order of torch's kernel is a sum; what
/// else is done to rows as that does it is for CPUs alone.)
const char* name_of(const fuse::Step& step) {
  if (!folds_rows(step)) return fuse::name_of(step.opcode);
  const bool is_fold =
      step.row_fold == fuse::RowFold::none || step.row_fold == fuse::RowFold::cascade_sum;
  return is_fold ? fuse::name_of(step.folding.fold) : "rows_on_cpu";
}

/// (its name, whether it folds rows, its divisor, out, in, member)
py::tuple step_row(const fuse::Step& step) {
  py::list in;
  for (int k = 0; k < step.inputs; ++k) in.append(step.in[k]);
  return py::make_tuple(name_of(step), folds_rows(step), step.folding.divisor, step.out, in,
                        step.member);
}

/// One by one, also those of a chain, and what its links do to their operands.
py::list steps(const fuse::Program& program) {
  py::list rows;
  for (const fuse::Step& step : program.steps) {
    if (!step.chain) rows.append(step_row(step));
    for (fuse::Step link : step.links) {
      if (link.widened >= 0) {
        const auto wide = static_cast<fuse::RegisterId>(link.widened);
        fuse::RegisterId& operand = link.in[1 - link.place];
        py::list in;
        in.append(operand);
        rows.append(py::make_tuple(fuse::name_of(fuse::Opcode::cast), false, link.folding.divisor,
                                   wide, in, link.member));
        operand = wide;
      }
      rows.append(step_row(link));
    }
  }
  return rows;
}

py::list moves(const std::vector<fuse::Move>& list) {
  py::list rows;
  for (const fuse::Move& move : list) rows.append(py::make_tuple(move.tensor, move.reg));
  return rows;
}

/// (fold, register, tensor, divisor)
py::list folds(const fuse::Program& program) {
  py::list rows;
  for (const fuse::Reduction& fold : program.reductions)
    rows.append(py::make_tuple(fuse::name_of(fold.folding.fold), fold.reg, fold.tensor,
                               fold.folding.divisor));
  return rows;
}

}  // namespace

py::tuple dims(c10::ArrayRef<int64_t> sizes) { return py::tuple(py::cast(sizes.vec())); }

py::object dtype_object(c10::ScalarType type) {
  return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPDtype(type)));
}

py::dict describe(const fuse::GroupPlan& plan) {
  const fuse::Program& program = plan.program;
  py::dict all;
  all["numel"] = program.numel;
  all["row"] = program.row;
  all["shape"] = dims(program.shape);
  all["registers"] = registers(program);
  all["tensors"] = tensors(plan);
  all["parameters"] = parameters(plan);
  all["steps"] = steps(program);
  all["gathers"] = moves(program.gathers);
  all["scatters"] = moves(program.scatters);
  all["folds"] = folds(program);
  return all;
}

}  // namespace lazyeng::bindings
