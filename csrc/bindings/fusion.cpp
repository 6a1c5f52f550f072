// csrc/bindings/fusion.cpp: the function of lazyeng._C that shows what would run as groups, as
// plain data: what lazyeng/fuse makes Triton source of, and what tests compare with eager.
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <algorithm>
#include <unordered_map>

#include "csrc/bindings/bindings.h"
#include "csrc/fuse/op_table.h"
#include "csrc/fuse/plan.h"
#include "csrc/record/recorder.h"

namespace lazyeng::bindings {
namespace {

py::tuple dims(c10::ArrayRef<int64_t> sizes) { return py::tuple(py::cast(sizes.vec())); }

py::object dtype_object(c10::ScalarType type) {
  return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPDtype(type)));
}

/// The values of several ops, numbered as they turn up, and the storages that they lie in.
class Values {
 public:
  py::int_ number(const run::Value& value) {
    const auto [found, added] = numbers_.try_emplace(&value, values_.size());
    if (added) {
      const run::Geometry& look = value.geometry();
      values_.append(py::make_tuple(storage(value), dtype_object(look.dtype()), dims(look.sizes()),
                                    dims(look.strides()), look.offset()));
    }
    return found->second;
  }
  py::list values() const { return values_; }
  py::list storages() const { return storages_; }

 private:
  size_t storage(const run::Value& value) {
    run::StorageVar& var = value.var();
    const auto [found, added] = storage_numbers_.try_emplace(&var, storages_.size());
    if (added) {
      const c10::Storage& memory = var.engine_face();
      storages_.append(memory ? py::cast(value.fresh_real()) : py::none());
    }
    return found->second;
  }

  std::unordered_map<const run::Value*, size_t> numbers_;
  std::unordered_map<const run::StorageVar*, size_t> storage_numbers_;
  py::list values_, storages_;
};

/// ("value", number), a plain tensor, or None.
py::object tensor(const run::TensorArg& arg, Values& values) {
  if (arg.value) return py::make_tuple("value", values.number(*arg.value));
  return arg.raw.defined() ? py::cast(arg.raw) : py::none();
}

/// (op, label, arguments, numbers of the values that it makes)
py::tuple call(const run::Node& node, Values& values) {
  py::list arguments, outputs;
  size_t next = 0;
  for (size_t i = 0; i < node.args.size(); ++i) {
    const run::ArgKind kind = node.info.args[i].kind;
    const bool list =
        kind == run::ArgKind::tensor_list || kind == run::ArgKind::optional_tensor_list;
    if (kind == run::ArgKind::tensor) {
      arguments.append(tensor(node.tensors[next++], values));
    } else if (list && node.args[i].isInt()) {
      py::list elements;
      for (int64_t k = 0; k < node.args[i].toInt(); ++k)
        elements.append(tensor(node.tensors[next++], values));
      arguments.append(elements);
    } else {
      arguments.append(torch::jit::toPyObject(node.args[i]));
    }
  }
  for (const run::ValueRef& value : node.outputs)
    outputs.append(value ? py::object(values.number(*value)) : py::none());
  return py::make_tuple(node.info.name, node.label(), arguments, outputs);
}

/// (type, as, kind, the number or the value's number, negate, no_nan)
py::tuple parameter(const fuse::Group& group, const fuse::Plan& plan, size_t index,
                    Values& values) {
  using Kind = fuse::ParameterSource::Kind;
  const fuse::ParameterSource& source = plan.parameters[index];
  const run::Node& node = *group.members[source.member].node;
  const auto row = [&](const char* kind, py::object what) {
    return py::make_tuple(fuse::name_of(plan.program.parameters[index]), dtype_object(source.as),
                          kind, what, source.negate, source.no_nan);
  };
  switch (source.kind) {
    case Kind::constant:
      return row("constant", py::float_(source.constant));
    case Kind::argument:
      return row("number", torch::jit::toPyObject(node.args[source.index]));
    case Kind::number:
      return row("number", torch::jit::toPyObject(node.tensors[source.index].raw.item()));
    default:
      return row("value", values.number(*group.values[source.index].value));
  }
}

py::list registers(const fuse::Program& program) {
  py::list rows;
  for (const fuse::Register& reg : program.registers) {
    const char* kind = reg.kind == fuse::Register::Kind::scratch  ? "scratch"
                       : reg.kind == fuse::Register::Kind::tensor ? "tensor"
                                                                  : "parameter";
    rows.append(py::make_tuple(kind, fuse::name_of(reg.type), reg.index));
  }
  return rows;
}

py::list moves(const std::vector<fuse::Move>& list) {
  py::list rows;
  for (const fuse::Move& move : list) rows.append(py::make_tuple(move.tensor, move.reg));
  return rows;
}

/// lazyeng.fuse.description.Program says what each field means.
py::dict describe(const fuse::Group& group, const fuse::Plan& plan, Values& values) {
  const fuse::Program& program = plan.program;
  py::list tensors, parameters, steps, folds;
  for (size_t t = 0; t < program.tensors.size(); ++t) {
    const fuse::TensorAccess& tensor = program.tensors[t];
    const fuse::TensorSource& source = plan.tensors[t];
    tensors.append(py::make_tuple(fuse::name_of(tensor.type), dims(tensor.strides),
                                  values.number(*group.values[source.value].value), source.fresh));
  }
  for (size_t p = 0; p < program.parameters.size(); ++p)
    parameters.append(parameter(group, plan, p, values));
  for (const fuse::Step& step : program.steps) {
    py::list in;
    for (int k = 0; k < step.inputs; ++k) in.append(step.in[k]);
    steps.append(py::make_tuple(fuse::name_of(step.opcode), step.out, in, step.member));
  }
  for (const fuse::Reduction& fold : program.reductions)
    folds.append(py::make_tuple(fuse::name_of(fold.folding.fold), fold.reg, fold.tensor,
                                fold.folding.divisor != 1));
  py::dict all;
  all["numel"] = program.numel;
  all["shape"] = dims(program.shape);
  all["registers"] = registers(program);
  all["tensors"] = tensors;
  all["parameters"] = parameters;
  all["steps"] = steps;
  all["gathers"] = moves(program.gathers);
  all["scatters"] = moves(program.scatters);
  all["folds"] = folds;
  return all;
}

/// Whether lazyeng/fuse can express it: rows, folds that keep dims and products not yet.
bool is_known(const fuse::Program& program) {
  return program.row == 0 &&
         std::all_of(program.reductions.begin(), program.reductions.end(), [](const auto& fold) {
           return fold.places.totals == 1 && fold.folding.fold != fuse::Fold::product;
         });
}

/// (calls, program or None)
py::tuple planned_op(const Ref<engine::Op>& op, Values& values) {
  py::list calls;
  const auto* group = dynamic_cast<const fuse::Group*>(op.get());
  if (!group) {
    calls.append(call(static_cast<const run::Node&>(*op), values));
    return py::make_tuple(calls, py::none());
  }
  for (const fuse::Member& member : group->members) calls.append(call(*member.node, values));
  const fuse::Plan plan = fuse::lower(*group, fuse::needed_vars(*group));
  const bool shown = plan.possible && !group->checked && is_known(plan.program);
  return py::make_tuple(calls, shown ? py::object(describe(*group, plan, values)) : py::none());
}

PyObject* planned(PyObject*, PyObject*) {
  return guarded([&]() -> PyObject* {
    Values values;
    py::list ops;
    for (const Ref<engine::Op>& op : record::current_recorder()->planned())
      ops.append(planned_op(op, values));
    return py::make_tuple(ops, values.values(), values.storages()).release().ptr();
  });
}

}  // namespace

PyMethodDef fusion_methods[] = {
    {"planned", planned, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace lazyeng::bindings
