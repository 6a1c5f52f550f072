// csrc/fuse/lowering.cpp: from the members of a group to the steps of a program.
//
// Each op computes as torch's CPU kernel for it does: the operands are cast to the common dtype,
// the kernel runs in that dtype (float32 for float16 and bfloat16, whose result is rounded), and
// the result is cast to the dtype of the tensor that it goes to. Where torch departs from that, the
// form says so.
#include <limits>

#include "csrc/fuse/iteration.h"
#include "csrc/fuse/op_table.h"
#include "csrc/fuse/plan.h"
#include "csrc/fuse/result_type.h"

namespace lazyeng::fuse {
namespace {

/// Thrown by a form that the arguments do not fit: the group runs unfused.
struct Unfit {};

struct Operand {
  RegisterId reg;
  c10::ScalarType dtype;
};

Type register_type(c10::ScalarType dtype) {
  if (dtype == c10::kHalf || dtype == c10::kBFloat16) return Type::f32;
  Type type;
  if (!register_dtype(dtype, type)) throw Unfit();
  return type;
}

Type memory_type(c10::ScalarType dtype) {
  Type type;
  if (!register_dtype(dtype, type)) throw Unfit();
  return type;
}

class Lowering {
 public:
  Lowering(const Group& group, const std::vector<bool>& needed)
      : group_(group), needed_(needed), builder_(best_kernels(), group.numel, group.shape) {
    current_.resize(group.vars.size());
  }

  Plan run() {
    try {
      for (size_t m = 0; m < group_.members.size(); ++m) lower_member(m);
      store_results();
    } catch (const Unfit&) {
      return {};
    }
    if (!builder_.ok()) return {};
    plan_.program = std::move(builder_).finish();
    plan_.possible = true;
    return std::move(plan_);
  }

 private:
  // ---- arguments of the member at hand

  const run::Node& node() const { return *member_->node; }
  const run::Geometry& result_look() const { return look_of(member_->result); }
  const run::Geometry& look_of(int16_t value) const {
    return group_.values[static_cast<size_t>(value)].value->geometry();
  }

  /// Which tensor argument stands at the position of the schema; -1: none does.
  int tensor_at(size_t arg) const {
    if (arg >= node().info.args.size() || node().info.args[arg].kind != run::ArgKind::tensor)
      return -1;
    int index = 0;
    for (size_t i = 0; i < arg; ++i) index += node().info.args[i].kind == run::ArgKind::tensor;
    return index;
  }

  bool has_number(size_t arg) const {
    return arg < node().args.size() && node().args[arg].isScalar();
  }

  /// Takes part in promotion as the argument does: a tensor, or a number.
  void promote(ResultType& type, size_t arg) const {
    const int index = tensor_at(arg);
    if (index < 0) {
      if (!has_number(arg)) throw Unfit();
      return type.add(node().args[arg].toScalar().type(), true, true);
    }
    const int16_t value = member_->operands[static_cast<size_t>(index)];
    if (value != kNone) return type.add(look_of(value));
    const at::Tensor& raw = node().tensors[static_cast<size_t>(index)].raw;
    if (!raw.defined() || raw.numel() != 1) throw Unfit();
    type.add(raw.scalar_type(), raw.dim() == 0, raw.unsafeGetTensorImpl()->is_wrapped_number());
  }

  c10::ScalarType common_dtype(std::initializer_list<size_t> args) const {
    ResultType type;
    for (size_t arg : args) promote(type, arg);
    return type.get();
  }

  c10::ScalarType dtype_at(size_t arg) const {
    const int index = tensor_at(arg);
    if (index < 0) throw Unfit();
    const int16_t value = member_->operands[static_cast<size_t>(index)];
    if (value != kNone) return look_of(value).dtype();
    const at::Tensor& raw = node().tensors[static_cast<size_t>(index)].raw;
    if (!raw.defined()) throw Unfit();
    return raw.scalar_type();
  }

  bool is_single(size_t arg) const {
    const int index = tensor_at(arg);
    if (index < 0) return true;
    const int16_t value = member_->operands[static_cast<size_t>(index)];
    return value == kNone || look_of(value).numel() == 1;
  }

  // ---- registers

  RegisterId add_parameter(ParameterSource source, c10::ScalarType as) {
    source.member = static_cast<uint16_t>(member_ - group_.members.data());
    source.as = as;
    plan_.parameters.push_back(source);
    return builder_.parameter(register_type(as));
  }

  RegisterId constant(double value, c10::ScalarType as) {
    ParameterSource source;
    source.constant = value;
    return add_parameter(source, as);
  }

  RegisterId number(size_t arg, c10::ScalarType as, bool negate = false, bool no_nan = false) {
    if (!has_number(arg)) throw Unfit();
    ParameterSource source;
    source.kind = ParameterSource::Kind::argument;
    source.index = static_cast<uint16_t>(arg);
    source.negate = negate;
    source.no_nan = no_nan;
    return add_parameter(source, as);
  }

  RegisterId single(int index, c10::ScalarType as) {
    ParameterSource source;
    const int16_t value = member_->operands[static_cast<size_t>(index)];
    source.kind = value == kNone ? ParameterSource::Kind::number : ParameterSource::Kind::value;
    source.index = static_cast<uint16_t>(value == kNone ? index : value);
    return add_parameter(source, as);
  }

  TensorAccess access(int16_t value, int operand) const {
    TensorAccess access;
    access.type = memory_type(look_of(value).dtype());
    if (operand >= 0) access.strides = iteration_.strides[static_cast<size_t>(operand)];
    return access;
  }

  RegisterId load(int16_t value, int operand) {
    const GroupValue& slot = group_.values[static_cast<size_t>(value)];
    if (current_[slot.var].written) return current_[slot.var].reg;
    TensorAccess tensor = access(value, operand);
    for (const Loaded& known : loaded_)
      if (known.value == value && known.strides == tensor.strides) return known.reg;
    Loaded entry{value, tensor.strides, builder_.load(std::move(tensor))};
    plan_.tensors.push_back({static_cast<uint16_t>(value), false});
    if (is_narrow(look_of(value).dtype())) entry.reg = builder_.cast(entry.reg, Type::f32);
    loaded_.push_back(entry);
    return entry.reg;
  }

  RegisterId round_to(RegisterId reg, c10::ScalarType dtype) {
    if (!is_narrow(dtype)) return reg;
    const Opcode opcode = dtype == c10::kHalf ? Opcode::round_f16 : Opcode::round_bf16;
    return builder_.step(opcode, Type::f32, Type::f32, {reg});
  }

  RegisterId convert(Operand from, c10::ScalarType to) {
    if (from.dtype == to) return from.reg;
    const Type type = register_type(to);
    RegisterId reg = from.reg;
    if (builder_.type_of(reg) != type) reg = builder_.cast(reg, type);
    // (What fits into bool or 8 bits fits into the narrow floats; float16 into bfloat16 does not.)
    return round_to(reg, to);
  }

  /// The argument in `dtype`. `exact`: a single number that torch takes in float32 where the
  /// tensors are of a narrow dtype.
  RegisterId as(size_t arg, c10::ScalarType dtype, bool exact = false) {
    const c10::ScalarType wanted = exact && is_narrow(dtype) ? c10::kFloat : dtype;
    const int index = tensor_at(arg);
    if (index < 0) return number(arg, wanted);
    const int16_t value = member_->operands[static_cast<size_t>(index)];
    if (value == kNone || (look_of(value).numel() == 1 && group_.numel != 1))
      return single(index, wanted);
    return convert({load(value, index), look_of(value).dtype()}, wanted);
  }

  Operand step(Opcode opcode, c10::ScalarType dtype, std::initializer_list<RegisterId> in) {
    const Type type = register_type(dtype);
    return {round_to(builder_.step(opcode, type, type, in), dtype), dtype};
  }

  // ---- forms

  Operand unary(Opcode opcode) {
    const c10::ScalarType dtype = dtype_at(0);
    return step(opcode, dtype, {as(0, dtype)});
  }

  c10::ScalarType float_dtype(c10::ScalarType common) const {
    if (c10::isFloatingType(common)) return common;
    if (!c10::isFloatingType(result_look().dtype())) throw Unfit();
    return result_look().dtype();
  }

  Operand unary_float(Opcode opcode) {
    const c10::ScalarType dtype = float_dtype(dtype_at(0));
    return step(opcode, dtype, {as(0, dtype)});
  }

  Operand binary(Opcode opcode) {
    const c10::ScalarType dtype = common_dtype({0, 1});
    const bool exact = opcode == Opcode::mul && is_single(1);
    return step(opcode, dtype, {as(0, dtype), as(1, dtype, exact)});
  }

  Operand scaled(Opcode opcode, size_t a, size_t b) {
    const c10::ScalarType dtype = common_dtype({0, 1});
    if (!has_number(2)) throw Unfit();
    if (node().args[2].toScalar().equal(1))
      return step(opcode, dtype, {as(a, dtype), as(b, dtype)});
    if (dtype == c10::kBool || is_narrow(dtype)) throw Unfit();
    const bool negate = opcode == Opcode::sub;
    return step(Opcode::add_scaled, dtype, {as(a, dtype), as(b, dtype), number(2, dtype, negate)});
  }

  Operand divide() {
    if (node().args.size() > 2) throw Unfit();  // a rounding mode
    const c10::ScalarType dtype = float_dtype(common_dtype({0, 1}));
    return step(Opcode::div, dtype, {as(0, dtype), as(1, dtype, is_single(1))});
  }

  Operand compare(Opcode opcode) {
    const c10::ScalarType dtype = common_dtype({0, 1});
    const RegisterId a = as(0, dtype), b = as(1, dtype);
    return {builder_.step(opcode, register_type(dtype), Type::b8, {a, b}), c10::kBool};
  }

  Operand logical_not() {
    const c10::ScalarType dtype = dtype_at(0);
    const RegisterId a = as(0, dtype);
    return {builder_.step(Opcode::logical_not, register_type(dtype), Type::b8, {a}), c10::kBool};
  }

  Operand is_nan() {
    const c10::ScalarType dtype = dtype_at(0);
    if (!c10::isFloatingType(dtype)) throw Unfit();
    const RegisterId a = as(0, dtype);
    return {builder_.step(Opcode::ne, register_type(dtype), Type::b8, {a, a}), c10::kBool};
  }

  Operand select(size_t condition, RegisterId yes, RegisterId no, c10::ScalarType dtype) {
    if (dtype_at(condition) != c10::kBool) throw Unfit();
    const RegisterId mask = as(condition, c10::kBool);
    const Type type = register_type(dtype);
    return {builder_.step(Opcode::select, type, type, {mask, yes, no}), dtype};
  }

  Operand where() {
    const c10::ScalarType dtype = common_dtype({1, 2});
    const RegisterId yes = as(1, dtype), no = as(2, dtype);
    return select(0, yes, no, dtype);
  }

  Operand masked_fill() {
    const c10::ScalarType dtype = dtype_at(0);
    if (!is_single(2)) throw Unfit();
    const RegisterId value = as(2, dtype), self = as(0, dtype);
    return select(1, value, self, dtype);
  }

  Operand clamp(Opcode opcode) {
    ResultType type;
    promote(type, 0);
    for (size_t arg : {1, 2})
      if (has_number(arg)) promote(type, arg);
    const c10::ScalarType dtype = type.get();
    const RegisterId self = as(0, dtype);
    const bool low = has_number(1), high = has_number(2);
    // (Of two zeros the second operand is taken: torch takes self's.)
    if (opcode != Opcode::clamp) return step(opcode, dtype, {number(1, dtype, false, true), self});
    if (low && high) {
      const RegisterId min = number(1, dtype, false, true), max = number(2, dtype, false, true);
      return step(Opcode::clamp, dtype, {self, min, max});
    }
    if (low) return step(Opcode::maximum, dtype, {number(1, dtype, false, true), self});
    return step(Opcode::minimum, dtype, {number(2, dtype, false, true), self});
  }

  Operand with_numbers(Opcode opcode) {
    ResultType type;
    for (size_t arg = 0; arg < node().args.size(); ++arg)
      if (tensor_at(arg) >= 0) promote(type, arg);
    const c10::ScalarType dtype = type.get();
    if (!c10::isFloatingType(dtype)) throw Unfit();
    c10::SmallVector<RegisterId, kMaxInputs> in;
    for (size_t arg = 0; arg < node().args.size(); ++arg) {
      if (tensor_at(arg) >= 0)
        in.push_back(as(arg, dtype));
      else if (node().info.args[arg].kind == run::ArgKind::scalar)
        in.push_back(number(arg, is_narrow(dtype) ? c10::kFloat : dtype));
    }
    switch (in.size()) {
      case 2:
        return step(opcode, dtype, {in[0], in[1]});
      case 3:
        return step(opcode, dtype, {in[0], in[1], in[2]});
      case 4:
        return step(opcode, dtype, {in[0], in[1], in[2], in[3]});
      default:
        throw Unfit();
    }
  }

  Operand gelu() {
    const c10::ScalarType dtype = float_dtype(dtype_at(0));
    return step(approximation(1) ? Opcode::gelu_tanh : Opcode::gelu, dtype, {as(0, dtype)});
  }

  Operand gelu_backward() {
    const c10::ScalarType dtype = common_dtype({0, 1});
    if (!c10::isFloatingType(dtype)) throw Unfit();
    return step(approximation(2) ? Opcode::gelu_tanh_backward : Opcode::gelu_backward, dtype,
                {as(0, dtype), as(1, dtype)});
  }

  /// Whether gelu's argument says "tanh"; what is not a known word is the op's own to refuse.
  bool approximation(size_t arg) const {
    const auto word = node().args[arg].toStringView();
    if (word != "tanh" && word != "none") throw Unfit();
    return word == "tanh";
  }

  Operand power() {
    if (!has_number(1)) throw Unfit();
    const double exponent = node().args[1].toScalar().toDouble();
    const c10::ScalarType dtype = common_dtype({0, 1});
    const RegisterId x = as(0, dtype);
    if (exponent == 2) return step(Opcode::square, dtype, {x});
    if (!c10::isFloatingType(dtype)) throw Unfit();
    if (exponent == 0) return step(Opcode::copy, dtype, {constant(1, dtype)});
    if (exponent == 1) return step(Opcode::copy, dtype, {x});
    if (exponent == 0.5) return step(Opcode::sqrt, dtype, {x});
    if (exponent == -0.5) return step(Opcode::rsqrt, dtype, {x});
    if (exponent == -1) return step(Opcode::reciprocal, dtype, {x});
    const bool cube = exponent == 3, inverse_square = exponent == -2;
    if (cube || inverse_square) {
      const Operand square = step(Opcode::square, dtype, {x});
      if (cube) return step(Opcode::mul, dtype, {square.reg, x});
      return step(Opcode::reciprocal, dtype, {square.reg});
    }
    return step(Opcode::pow, dtype, {x, number(1, is_narrow(dtype) ? c10::kFloat : dtype)});
  }

  Operand cast() {
    const size_t source = tensor_at(1) >= 0 ? 1 : 0;
    const c10::ScalarType dtype = result_look().dtype();
    const RegisterId reg = as(source, dtype);
    return {builder_.step(Opcode::copy, register_type(dtype), register_type(dtype), {reg}), dtype};
  }

  Operand filled(RegisterId value) {
    const c10::ScalarType dtype = result_look().dtype();
    return {builder_.step(Opcode::copy, register_type(dtype), register_type(dtype), {value}),
            dtype};
  }

  Operand apply(const OpRule& rule) {
    switch (rule.form) {
      case Form::unary:
        return unary(rule.opcode);
      case Form::unary_float:
        return unary_float(rule.opcode);
      case Form::binary:
        return binary(rule.opcode);
      case Form::binary_scaled:
        return scaled(rule.opcode, 0, 1);
      case Form::reversed:
        return scaled(rule.opcode, 1, 0);
      case Form::divide:
        return divide();
      case Form::compare:
        return compare(rule.opcode);
      case Form::logical_not:
        return logical_not();
      case Form::is_nan:
        return is_nan();
      case Form::where:
        return where();
      case Form::masked_fill:
        return masked_fill();
      case Form::clamp:
        return clamp(rule.opcode);
      case Form::with_numbers:
        return with_numbers(rule.opcode);
      case Form::gelu:
        return gelu();
      case Form::gelu_backward:
        return gelu_backward();
      case Form::power:
        return power();
      case Form::cast:
        return cast();
      case Form::fill:
        return filled(number(1, result_look().dtype()));
      case Form::zero:
        return filled(constant(0, result_look().dtype()));
      case Form::one:
        return filled(constant(1, result_look().dtype()));
      case Form::sum:
      case Form::mean:
      case Form::maximum:
      case Form::minimum:
        break;
    }
    throw Unfit();
  }

  // ---- members and results

  /// The register is folded when the tiles are done; nobody in the group reads the result.
  void lower_reduction(Form form) {
    const run::Geometry& input = look_of(member_->operands[0]);
    go_over(input);
    const c10::ScalarType dtype = result_look().dtype();
    Written& var = current_[group_.values[static_cast<size_t>(member_->result)].var];
    var.reg = as(0, dtype);
    if (is_overwritten(member_->operands[0])) {
      // Folded at the end of a tile: not from memory that a step of the tile writes.
      const Type type = register_type(dtype);
      var.reg = builder_.step(Opcode::copy, type, type, {var.reg});
    }
    var.written = var.folded = true;
    var.value = member_->result;
    var.divisor = form == Form::mean ? static_cast<double>(input.numel()) : 1;
    var.fold = form == Form::maximum   ? Fold::maximum
               : form == Form::minimum ? Fold::minimum
                                       : Fold::sum;
    var.access.type = memory_type(dtype);
  }

  bool is_overwritten(int16_t value) const {
    const GroupVar& var = group_.vars[group_.values[static_cast<size_t>(value)].var];
    return var.written && !var.fresh;
  }

  void lower_member(size_t index) {
    member_ = &group_.members[index];
    const OpRule& rule = *rule_of(node().info);
    if (is_reduction(rule.form)) return lower_reduction(rule.form);
    go_over(result_look());
    const Operand made = apply(rule);
    check_dtype(made.dtype);
    Written& var = current_[group_.values[static_cast<size_t>(member_->result)].var];
    var.reg = convert(made, result_look().dtype());
    var.written = true;
    var.value = member_->result;
    var.access = access(member_->result, node().info.writes ? 0 : -1);
  }

  void go_over(const run::Geometry& elements) {
    c10::SmallVector<const run::Geometry*, 4> looks;
    for (int16_t value : member_->operands)
      looks.push_back(value == kNone ? nullptr : &look_of(value));
    iteration_ = Iteration();
    if (!iterate(elements, looks, iteration_)) throw Unfit();
    for (const Dims& strides : iteration_.strides)
      if (!strides.empty() && iteration_.shape != group_.shape) throw Unfit();
  }

  /// An op that makes a tensor has decided its dtype when it was recorded.
  void check_dtype(c10::ScalarType made) const {
    if (!node().info.writes && made != result_look().dtype()) throw Unfit();
  }

  void store_results() {
    for (size_t v = 0; v < group_.vars.size(); ++v) {
      const Written& var = current_[v];
      if (!var.written) continue;
      if (!needed_[v]) {
        plan_.bytes_saved += look_of(var.value).extent_bytes();
        continue;
      }
      if (var.folded)
        builder_.reduce(var.reg, var.fold, var.divisor, var.access.type);
      else
        builder_.store(var.reg, var.access);
      plan_.tensors.push_back({static_cast<uint16_t>(var.value), group_.vars[v].fresh});
    }
  }

  struct Loaded {
    int16_t value;
    Dims strides;
    RegisterId reg;
  };
  struct Written {
    bool written = false;
    RegisterId reg = 0;
    int16_t value = 0;
    TensorAccess access;
    bool folded = false;
    Fold fold = Fold::sum;
    double divisor = 1;
  };

  const Group& group_;
  const std::vector<bool>& needed_;
  ProgramBuilder builder_;
  Plan plan_;
  const Member* member_ = nullptr;
  Iteration iteration_;
  std::vector<Written> current_;  // of each var
  std::vector<Loaded> loaded_;
};

}  // namespace

Plan lower(const Group& group, const std::vector<bool>& needed) {
  return Lowering(group, needed).run();
}

}  // namespace lazyeng::fuse
