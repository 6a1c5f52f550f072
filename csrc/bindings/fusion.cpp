// csrc/bindings/fusion.cpp: functions of lazyeng._C that show what would run as groups, as plain
// data: what lazyeng/fuse makes Triton source of, and what tests compare with eager. And when ops
// are tried for them.
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <algorithm>
#include <unordered_map>

#include "csrc/bindings/bindings.h"
#include "csrc/bindings/programs.h"
#include "csrc/fuse/bits/trials.h"
#include "csrc/fuse/device/device_kernels.h"
#include "csrc/fuse/numbers.h"
#include "csrc/fuse/op_table.h"
#include "csrc/fuse/plan.h"
#include "csrc/record/recorder.h"

namespace lazyeng::bindings {
namespace {

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
    if (kind == run::ArgKind::tensor) {
      arguments.append(tensor(node.tensors[next++], values));
    } else if (run::is_list(kind) && node.args[i].isInt()) {
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

/// What the parameter is in this run: a number, or a value's number.
py::object parameter(const fuse::Group& group, const fuse::ParameterSource& source,
                     Values& values) {
  using Kind = fuse::ParameterSource::Kind;
  const run::Node& node = *group.members[source.member].node;
  switch (source.kind) {
    case Kind::constant:
      return py::float_(source.constant);
    case Kind::argument:
      return torch::jit::toPyObject(fuse::number_of(group, source));
    case Kind::number:
      return torch::jit::toPyObject(node.tensors[source.index].raw.item());
    default:
      return values.number(*group.values[source.index].value);
  }
}

/// (calls, program or None, the value of each of its tensors, what each of its parameters is)
py::tuple planned_op(const Ref<engine::Op>& op, Values& values) {
  py::list calls, tensors, parameters;
  const auto* group = dynamic_cast<const fuse::Group*>(op.get());
  if (!group) {
    calls.append(call(static_cast<const run::Node&>(*op), values));
    return py::make_tuple(calls, py::none(), tensors, parameters);
  }
  for (const fuse::Member& member : group->members) calls.append(call(*member.node, values));
  if (group->by_hand) return py::make_tuple(calls, py::none(), tensors, parameters);
  const fuse::GroupPlan plan = fuse::lower(*group, fuse::needed_vars(*group));
  // (Where other bits are allowed only errors are looked for, which kernels of devices do not
  // raise.)
  const bool checked = group->checked && !fuse::allows_inexact(c10::kCPU);
  if (!plan.possible || checked || !fuse::has_kernels(plan.program))
    return py::make_tuple(calls, py::none(), tensors, parameters);
  for (const fuse::TensorSource& source : plan.tensors)
    tensors.append(values.number(*group->values[source.value].value));
  for (const fuse::ParameterSource& source : plan.parameters)
    parameters.append(parameter(*group, source, values));
  return py::make_tuple(calls, describe(plan), tensors, parameters);
}

PyObject* planned(PyObject*, PyObject*) {
  return guarded([&]() -> PyObject* {
    Values values;
    py::list ops;
    for (const Ref<engine::Op>& op : record::current_recorder()->pusher().planned())
      ops.append(planned_op(op, values));
    return py::make_tuple(ops, values.values(), values.storages()).release().ptr();
  });
}

PyObject* set_ops_before_trials(PyObject*, PyObject* ops) {
  const unsigned long long number = PyLong_AsUnsignedLongLong(ops);
  if (PyErr_Occurred()) return nullptr;
  fuse::set_ops_before_trials(number);
  Py_RETURN_NONE;
}

PyObject* tried_ops(PyObject*, PyObject*) {
  return guarded([&]() -> PyObject* {
    py::dict ops;
    for (const fuse::TriedOp& op : fuse::tried_ops())
      ops[op.name.c_str()] = py::make_tuple(op.in_float, op.in_double, op.in_half, op.in_bfloat16);
    return ops.release().ptr();
  });
}

/// Of each op of the table, whether it reduces a tensor. (A loss may, or may not.)
PyObject* fused_ops(PyObject*, PyObject*) {
  return guarded([&]() -> PyObject* {
    py::dict ops;
    for (const auto& [name, rule] : fuse::all_rules())
      ops[name.c_str()] = fuse::is_reduction(rule.form) && !fuse::is_loss(rule.form);
    return ops.release().ptr();
  });
}

}  // namespace

PyMethodDef fusion_methods[] = {
    {"fused_ops", fused_ops, METH_NOARGS, nullptr},
    {"planned", planned, METH_NOARGS, nullptr},
    {"set_ops_before_trials", set_ops_before_trials, METH_O, nullptr},
    {"tried_ops", tried_ops, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace lazyeng::bindings
