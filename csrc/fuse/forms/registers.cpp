// csrc/fuse/forms/registers.cpp: loads, numbers, conversions, results.
#include "csrc/fuse/forms/registers.h"

#include "csrc/fuse/bits/torch_functions.h"
#include "csrc/fuse/extent.h"
#include "csrc/fuse/op_table.h"

namespace lazyeng::fuse {

Type memory_type(c10::ScalarType dtype) {
  Type type;
  if (!register_dtype(dtype, type)) throw Unfit();
  return type;
}

Type register_type(c10::ScalarType dtype) {
  return is_narrow(dtype) ? Type::f32 : memory_type(dtype);
}

Registers::Registers(const Group& group)
    : group_(group),
      builder_(best_kernels(), group.numel, group.row, group.shape),
      args_(group, group.members[0]),
      written_(group.vars.size()) {}

void Registers::begin(const Member& member, const Extent& extent) {
  args_ = Arguments(group_, member);
  c10::SmallVector<const run::Geometry*, 4> looks;
  for (int16_t value : member.operands)
    looks.push_back(value == kNone ? nullptr : &args_.look_of(value));
  iteration_ = Iteration();
  if (!iterate(*extent.elements, looks, iteration_, extent.outer)) throw Unfit();
  const c10::Device device = member.node->device;
  const OpRule& rule = *rule_of(member.node->info);
  // (Of several results the first need not be asked for.)
  const c10::ScalarType result =
      member.results[0] == kNone ? c10::ScalarType::Undefined : args_.result_look().dtype();
  builder_.begin_member(static_cast<size_t>(&member - group_.members.data()),
                        may_refuse(rule, *member.node, result));
  refuses_ =
      device.is_cpu() && !is_reduction(rule.form) && refuses_doubtful(rule, *member.node, result);
  rate_ = extent.elements->numel() == group_.numel ? Rate::element : Rate::row;
  builder_.set_rate(rate_);
  for (const Dims& strides : iteration_.strides)
    if (rate_over(strides) == Rate::element && !strides.empty() &&
        (rate_ == Rate::row || iteration_.shape != group_.shape))
      throw Unfit();
}

/// How often the program must look at a tensor that the member goes over like that.
Rate Registers::rate_over(const Dims& strides) const {
  if (strides.empty() || !group_.row) return rate_;
  if (constant_run(iteration_.shape, strides) == group_.row) return Rate::row;
  return repeated_run(iteration_.shape, strides) == group_.row ? Rate::column : Rate::element;
}

// ---- arguments

RegisterId Registers::add_parameter(ParameterSource source, c10::ScalarType as) {
  source.member = static_cast<uint16_t>(&args_.member() - group_.members.data());
  source.as = as;
  plan_.parameters.push_back(source);
  return builder_.parameter(register_type(as));
}

RegisterId Registers::constant(double value, c10::ScalarType as) {
  ParameterSource source;
  source.constant = value;
  return add_parameter(source, as);
}

RegisterId Registers::number(size_t arg, c10::ScalarType as, bool negate, bool no_nan,
                             double plus) {
  if (!args_.has_number(arg)) throw Unfit();
  ParameterSource source;
  source.kind = ParameterSource::Kind::argument;
  source.index = static_cast<uint16_t>(arg);
  source.negate = negate;
  source.no_nan = no_nan;
  source.constant = plus;
  return add_parameter(source, as);
}

RegisterId Registers::inverse_number(size_t arg, c10::ScalarType as) {
  const RegisterId made = number(arg, as);
  plan_.parameters.back().inverse = true;
  return made;
}

RegisterId Registers::single(int tensor, c10::ScalarType as) {
  ParameterSource source;
  const int16_t value = args_.value_of(tensor);
  source.kind = value == kNone ? ParameterSource::Kind::number : ParameterSource::Kind::value;
  source.index = static_cast<uint16_t>(value == kNone ? tensor : value);
  if (value != kNone) source.stored = args_.look_of(value).dtype();
  return add_parameter(source, as);
}

TensorAccess Registers::access(int16_t value, int operand) const {
  TensorAccess access;
  access.type = memory_type(args_.look_of(value).dtype());
  access.rate = rate_;
  if (operand < 0) return access;
  const Dims& strides = iteration_.strides[static_cast<size_t>(operand)];
  access.rate = rate_over(strides);
  if (access.rate == Rate::element) access.strides = strides;
  return access;
}

RegisterId Registers::load(int16_t value, int operand) {
  const Written& var = written_[group_.values[static_cast<size_t>(value)].var];
  if (var.written) return var.reg;
  TensorAccess tensor = access(value, operand);
  for (const Loaded& known : loaded_)
    if (same_elements(group_.values[known.value], group_.values[value]) &&
        known.access.strides == tensor.strides && known.access.rate == tensor.rate)
      return known.reg;
  Loaded entry{value, tensor, builder_.load(tensor)};
  plan_.tensors.push_back({static_cast<uint16_t>(value), false});
  if (is_narrow(args_.look_of(value).dtype())) entry.reg = builder_.cast(entry.reg, Type::f32);
  // (A view of other bytes as bool may hold any: what is not 0 is true.)
  if (tensor.type == Type::b8 && args_.node().device.is_cpu())
    entry.reg = builder_.cast(entry.reg, Type::b8);
  loaded_.push_back(entry);
  return entry.reg;
}

RegisterId Registers::as(size_t arg, c10::ScalarType dtype, bool exact) {
  const c10::ScalarType wanted = exact && is_narrow(dtype) ? c10::kFloat : dtype;
  const int index = args_.tensor_at(arg);
  if (index < 0) return number(arg, wanted);
  const int16_t value = args_.value_of(index);
  if (!args_.is_given(arg)) throw Unfit();
  if (value == kNone || (args_.look_of(value).numel() == 1 && group_.numel != 1))
    return single(index, wanted);
  return convert({load(value, index), args_.look_of(value).dtype()}, wanted);
}

RegisterId Registers::item(size_t arg, c10::ScalarType dtype) {
  const int index = args_.tensor_at(arg);
  if (index < 0) return number(arg, dtype);
  const int16_t value = args_.value_of(index);
  if (value != kNone && group_.numel == 1) {  // (read where it lies, and cast)
    if (args_.look_of(value).dtype() != dtype) throw Unfit();
    return as(arg, dtype);
  }
  const RegisterId made = single(index, dtype);
  plan_.parameters.back().item = true;
  return made;
}

// ---- steps

RegisterId Registers::round_to(RegisterId reg, c10::ScalarType dtype) {
  if (!is_narrow(dtype)) return reg;
  const Opcode opcode = dtype == c10::kHalf ? Opcode::round_f16 : Opcode::round_bf16;
  return builder_.step(opcode, Type::f32, Type::f32, {reg});
}

RegisterId Registers::convert(Operand from, c10::ScalarType to) {
  if (from.dtype == to) return from.reg;
  const Type type = register_type(to);
  RegisterId reg = from.reg;
  if (builder_.type_of(reg) != type) reg = builder_.cast(reg, type);
  // (What fits into bool or 8 bits fits into the narrow floats; float16 into bfloat16 does not.)
  return round_to(reg, to);
}

namespace {

/// Whether the result may need more bits than the operands have. (What these choose from their
/// operands, or cut off, does not.)
bool needs_rounding(Opcode opcode) {
  switch (opcode) {
    case Opcode::copy:
    case Opcode::neg:
    case Opcode::abs:
    case Opcode::sign:
    case Opcode::relu:
    case Opcode::maximum:
    case Opcode::minimum:
    case Opcode::clamp:
    case Opcode::threshold_backward:
    case Opcode::floor:
    case Opcode::ceil:
    case Opcode::trunc:
    case Opcode::round:
    case Opcode::frac:
    case Opcode::copysign:
    case Opcode::fmax:
    case Opcode::fmin:
    case Opcode::fmod:
    case Opcode::heaviside:
    case Opcode::nan_to_num:
    case Opcode::shrink:
    case Opcode::hardtanh_backward:
      return false;
    default:
      return true;
  }
}

}  // namespace

Operand Registers::step(Opcode opcode, c10::ScalarType dtype,
                        std::initializer_list<RegisterId> in) {
  const Type type = register_type(dtype);
  const Kernel checking = refuses_ ? best_kernels().checking(opcode, type) : nullptr;
  const RegisterId made = builder_.step(opcode, type, type, in, checking);
  return {needs_rounding(opcode) ? round_to(made, dtype) : made, dtype};
}

Operand Registers::function(Opcode opcode, c10::ScalarType dtype, RegisterId in) {
  const c10::Device device = args_.node().device;
  const bool own = is_narrow(dtype) || !device.is_cpu() || allows_inexact(device);
  const Type type = register_type(dtype);
  const Kernel torchs = own ? nullptr : torch_function(opcode, type);
  if (!torchs) return step(opcode, dtype, {in});
  return {builder_.step(opcode, type, type, {in}, torchs), dtype};
}

// ---- results

Registers::Written& Registers::result_var(size_t index) {
  return written_[group_.values[static_cast<size_t>(args_.member().results[index])].var];
}

void Registers::set_result(RegisterId reg, Rate rate, size_t index) {
  const int16_t result = args_.member().results[index];
  Written& var = result_var(index);
  var.reg = reg;
  var.written = true;
  var.value = result;
  var.access = access(result, args_.node().info.writes ? 0 : -1);
  var.access.rate = rate;
}

bool Registers::is_overwritten(int16_t value) const {
  const GroupVar& var = group_.vars[group_.values[static_cast<size_t>(value)].var];
  return var.written && !var.fresh;
}

void Registers::set_fold(RegisterId reg, Fold fold, double divisor, const Places& places,
                         size_t index, std::optional<Type> sum_of) {
  if (is_overwritten(args_.value_of(0))) {
    // Folded at the end of a tile: not from memory that a step of the tile writes.
    const Type type = builder_.type_of(reg);
    reg = builder_.step(Opcode::copy, type, type, {reg});
  }
  Written& var = result_var(index);
  var.reg = reg;
  var.written = var.folded = true;
  var.value = args_.member().results[index];
  var.sum_of = sum_of;
  var.fold = fold;
  var.divisor = divisor;
  var.places = places;
  var.access.type = memory_type(args_.look_of(var.value).dtype());
}

/// (Read at the end of a tile: a group whose members may refuse operands writes no memory that was
/// there before.)
void Registers::set_picked_sum(const PickedSum& sum, RegisterId targets) {
  for (const bool total_weight : {false, true}) {
    Written& var = result_var(total_weight);
    var.written = true;
    var.value = args_.member().results[total_weight];
    var.picked = sum;
    var.targets = targets;
    var.total_weight = total_weight;
  }
}

void Registers::store(size_t v) {
  const Written& var = written_[v];
  if (var.picked)
    builder_.sum_picked(*var.picked, var.targets, var.total_weight);
  else if (var.folded)
    builder_.reduce(var.reg, var.fold, var.divisor, var.access.type, var.places, var.sum_of);
  else
    builder_.store(var.reg, var.access);
  plan_.tensors.push_back({static_cast<uint16_t>(var.value), group_.vars[v].fresh});
}

GroupPlan Registers::finish(const std::vector<bool>& needed) && {
  for (size_t v = 0; v < written_.size(); ++v) {
    if (!written_[v].written) continue;
    if (needed[v] || written_[v].picked)  // (a few bytes; and it may refuse targets)
      store(v);
    else
      plan_.bytes_saved += args_.look_of(written_[v].value).span_bytes();
  }
  if (!builder_.ok()) return {};
  plan_.program = std::move(builder_).finish();
  plan_.possible = true;
  return std::move(plan_);
}

}  // namespace lazyeng::fuse
