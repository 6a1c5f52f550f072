// csrc/fuse/tiles/tile_program.cpp: building a program: unused steps out, registers into scratch
// slots.
#include "csrc/fuse/tiles/tile_program.h"

#include <algorithm>

#include "csrc/fuse/tiles/chains.h"

namespace lazyeng::fuse {
namespace {

// What the registers of a tile take together stays within half of the first-level cache, so that
// the tensors' own tiles fit beside it; a tile is long enough that calling kernels costs little.
constexpr size_t kScratchBytes = 16 << 10;
constexpr int64_t kMinTile = 512, kMaxTile = 4096;
// Whole blocks of vectors, of any kernel and chain.
constexpr int64_t kTileStep = 4 * kLanes;
// Nothing has to stay in the cache from step to step.
constexpr int64_t kTileWithoutScratch = 16384;

}  // namespace

ProgramBuilder::ProgramBuilder(const KernelSet& kernels, int64_t numel, int64_t row, Dims shape)
    : kernels_(kernels) {
  program_.numel = numel;
  program_.row = row;
  program_.shape = std::move(shape);
}

RegisterId ProgramBuilder::new_register(Register::Kind kind, Type type, uint16_t index) {
  program_.registers.push_back({kind, type, Rate::element, index});
  return static_cast<RegisterId>(program_.registers.size() - 1);
}

RegisterId ProgramBuilder::load(TensorAccess tensor) {
  const Type type = tensor.type;
  const Rate rate = tensor.rate;
  const auto kind = tensor.linear() ? Register::Kind::tensor : Register::Kind::scratch;
  program_.tensors.push_back(std::move(tensor));
  const RegisterId reg = new_register(kind, type, last_tensor());
  program_.registers[reg].rate = rate;
  if (kind == Register::Kind::scratch) program_.gathers.push_back({last_tensor(), reg});
  return reg;
}

RegisterId ProgramBuilder::parameter(Type type) {
  program_.parameters.push_back(type);
  return new_register(Register::Kind::parameter, type,
                      static_cast<uint16_t>(program_.parameters.size() - 1));
}

RegisterId ProgramBuilder::add_step(Kernel kernel, Opcode opcode, Type out,
                                    std::initializer_list<RegisterId> in) {
  ok_ &= kernel != nullptr;
  Step step;
  step.kernel = kernel;
  step.opcode = opcode;
  step.member = member_;
  step.may_refuse = may_refuse_;
  for (RegisterId reg : in) step.in[step.inputs++] = reg;
  const Rate rate = rate_of(step);
  if (rate == Rate::element && program_.has_short_rows())
    for (int k = 0; k < step.inputs; ++k) step.in[k] = spread(step.in[k]);
  step.out = new_register(Register::Kind::scratch, out);
  program_.registers[step.out].rate = rate;
  program_.steps.push_back(step);
  return step.out;
}

Rate ProgramBuilder::rate_of(const Step& step) const {
  bool of[3] = {};  // which rates its inputs have
  for (int k = 0; k < step.inputs; ++k) {
    const Register& reg = program_.registers[step.in[k]];
    if (reg.kind != Register::Kind::parameter) of[static_cast<int>(reg.rate)] = true;
  }
  const bool row = of[static_cast<int>(Rate::row)], column = of[static_cast<int>(Rate::column)];
  if (of[static_cast<int>(Rate::element)] || (row && column)) return Rate::element;
  return row ? Rate::row : column ? Rate::column : rate_;
}

/// The same with as many elements as the tile.
RegisterId ProgramBuilder::spread(RegisterId reg) {
  if (program_.registers[reg].rate == Rate::element) return reg;
  const Type type = type_of(reg);
  if (!program_.has_short_rows()) {
    const RegisterId all = step(Opcode::copy, type, type, {reg});
    program_.registers[all].rate = Rate::element;
    return all;
  }
  for (const Step& known : program_.steps)
    if (known.spreads && known.in[0] == reg) return known.out;
  Step step;
  step.spreads = true;
  step.member = member_;
  step.may_refuse = may_refuse_;
  step.out = new_register(Register::Kind::scratch, type);
  step.in[step.inputs++] = reg;
  program_.steps.push_back(step);
  return step.out;
}

RegisterId ProgramBuilder::half(RegisterId pair, bool second) {
  const Type type = type_of(pair);
  if (program_.has_short_rows())
    return step(second ? Opcode::second_of_two : Opcode::first_of_two, type, type, {pair});
  return step(second ? Opcode::second_half : Opcode::first_half, type, type, {pair});
}

Folding ProgramBuilder::folding(RegisterId reg, Fold fold, double divisor) {
  const FoldKernel kernel = kernels_.fold(fold, type_of(reg));
  ok_ &= kernel != nullptr;
  return {fold, kernel, kernels_.columns(fold, type_of(reg)), divisor};
}

RegisterId ProgramBuilder::add_fold(Step step, Type out, c10::ArrayRef<RegisterId> in) {
  for (RegisterId reg : in) step.in[step.inputs++] = reg;
  step.member = member_;
  step.may_refuse = may_refuse_;
  step.out = new_register(Register::Kind::scratch, out);
  program_.registers[step.out].rate = Rate::row;
  program_.steps.push_back(step);
  return step.out;
}

RegisterId ProgramBuilder::fold_rows(RegisterId reg, Fold fold, double divisor, Type out) {
  reg = spread(reg);
  Step step;
  step.folding = folding(reg, fold, divisor);
  return add_fold(step, out, {reg});
}

RegisterId ProgramBuilder::rows(RowFold fold, std::initializer_list<RegisterId> in, double divisor,
                                std::optional<Type> order_of) {
  Step step;
  step.folding.divisor = divisor;
  std::vector<RegisterId> inputs(in);
  for (size_t k = 0; k < inputs.size(); ++k)
    if (reads_rows(fold, static_cast<int>(k))) inputs[k] = spread(inputs[k]);
  return add_rows(std::move(step), fold, inputs, order_of.value_or(type_of(inputs[0])));
}

RegisterId ProgramBuilder::rows_across(RowFold fold, RegisterId reg, int64_t inner) {
  Step step;
  step.inner = inner;
  return add_rows(std::move(step), fold, {spread(reg)}, type_of(reg));
}

RegisterId ProgramBuilder::one_hot(RegisterId value, RegisterId place,
                                   std::optional<RegisterId> weights, int64_t ignored) {
  Step step;
  step.ignored = ignored;
  ok_ &= type_of(place) == Type::i64;
  std::vector<RegisterId> in{value, place};
  if (weights) in.push_back(*weights);
  return add_rows(std::move(step), RowFold::one_hot, in, type_of(value));
}

RegisterId ProgramBuilder::add_rows(Step step, RowFold fold, c10::ArrayRef<RegisterId> in,
                                    Type order_of) {
  step.rows = rows_kernel(fold, order_of);
  step.row_fold = fold;
  ok_ &= step.rows != nullptr;
  const RegisterId made = add_fold(std::move(step), type_of(in[0]), in);
  if (makes_rows(fold)) program_.registers[made].rate = Rate::element;
  return made;
}

RegisterId ProgramBuilder::step(Opcode opcode, Type type, Type out,
                                std::initializer_list<RegisterId> in, Kernel kernel) {
  return add_step(kernel ? kernel : kernels_.kernel(opcode, type), opcode, out, in);
}

RegisterId ProgramBuilder::cast(RegisterId from, Type to) {
  return add_step(kernels_.cast(type_of(from), to), Opcode::cast, to, {from});
}

/// What the register was before it was rounded to the narrow type, which narrowing does as well.
RegisterId ProgramBuilder::before_rounding(RegisterId reg, Type narrow) const {
  const Opcode opcode = narrow == Type::f16 ? Opcode::round_f16 : Opcode::round_bf16;
  const Kernel rounds = kernels_.kernel(opcode, Type::f32);
  for (const Step& step : program_.steps)
    if (step.out == reg && step.kernel == rounds) return step.in[0];
  return reg;
}

uint16_t ProgramBuilder::store(RegisterId reg, TensorAccess tensor) {
  if (type_of(reg) != tensor.type)  // float16 or bfloat16
    reg = cast(before_rounding(reg, tensor.type), tensor.type);
  if (tensor.rate == Rate::element) reg = spread(reg);
  program_.tensors.push_back(std::move(tensor));
  if (program_.tensors.back().linear()) {
    program_.registers[reg].kind = Register::Kind::tensor;
    program_.registers[reg].index = last_tensor();
  } else {
    program_.scatters.push_back({last_tensor(), reg});
  }
  return last_tensor();
}

uint16_t ProgramBuilder::reduce(RegisterId reg, Fold fold, double divisor, Type type, Places places,
                                std::optional<Type> sum_of) {
  TensorAccess tensor;
  tensor.type = type;
  program_.tensors.push_back(std::move(tensor));
  reg = spread(reg);
  program_.reductions.push_back(
      {folding(reg, fold, divisor), reg, last_tensor(), std::move(places)});
  if (sum_of) {
    program_.reductions.back().sum = kernels_.sum(*sum_of);
    program_.reductions.back().sum_of = *sum_of;
    ok_ &= program_.reductions.back().sum != nullptr;
  }
  return last_tensor();
}

uint16_t ProgramBuilder::sum_picked(PickedSum sum, RegisterId targets, bool total_weight) {
  const auto load = std::ranges::find(program_.gathers, targets, &Move::reg);
  ok_ &= type_of(targets) == Type::i64 && load != program_.gathers.end();
  if (!ok_) return 0;
  sum.targets = load->tensor;
  sum.rows = spread(sum.rows);
  TensorAccess tensor;
  tensor.type = type_of(sum.rows);
  program_.tensors.push_back(std::move(tensor));
  // Both results of a member, which need not have both; another member may have the same sum.
  const auto tensor_of = [&](PickedSum& known) -> std::optional<uint16_t>& {
    return total_weight ? known.total_weight : known.loss;
  };
  const auto found = std::ranges::find_if(program_.picked_sums, [&](PickedSum& known) {
    return !tensor_of(known) && known.rows == sum.rows && known.targets == sum.targets &&
           known.weights == sum.weights && known.ignored == sum.ignored && known.mean == sum.mean;
  });
  const bool is_new = found == program_.picked_sums.end();
  tensor_of(is_new ? program_.picked_sums.emplace_back(sum) : *found) = last_tensor();
  return last_tensor();
}

void ProgramBuilder::drop_unused_steps() {
  std::vector<bool> used(program_.registers.size());
  for (const Reduction& reduction : program_.reductions) used[reduction.reg] = true;
  for (const PickedSum& sum : program_.picked_sums)
    for_each_register(sum, [&](RegisterId reg) { used[reg] = true; });
  for (const Move& move : program_.scatters) used[move.reg] = true;
  std::vector<Step> kept;
  for (size_t i = program_.steps.size(); i-- > 0;) {
    const Step& step = program_.steps[i];
    const bool stored = program_.registers[step.out].kind == Register::Kind::tensor;
    if (!stored && !used[step.out] && !step.may_refuse) continue;
    for (int k = 0; k < step.inputs; ++k) used[step.in[k]] = true;
    kept.push_back(step);
  }
  std::reverse(kept.begin(), kept.end());
  program_.steps = std::move(kept);
  std::erase_if(program_.gathers, [&](const Move& move) { return !used[move.reg]; });
}

/// What is made of numbers and of what all rows share is: such as a weight that is widened. (Not
/// what is a result: it is written tile by tile, and after the steps that read the memory before.)
void ProgramBuilder::put_first_what_is_done_once() {
  const auto is_shared = [&](RegisterId id) {
    const Register& reg = program_.registers[id];
    return reg.kind == Register::Kind::parameter || reg.rate == Rate::column;
  };
  for (Step& step : program_.steps)
    step.once = program_.registers[step.out].kind == Register::Kind::scratch &&
                (step.spreads || is_shared(step.out)) &&
                std::all_of(step.in, step.in + step.inputs, is_shared);
  std::ranges::stable_partition(program_.steps, [](const Step& step) { return step.once; });
}

/// Linear scan: a slot is taken again once its last reader has run; by that reader's result only if
/// the elements are equally wide and as many, as a kernel goes over its operands at the same pace.
void ProgramBuilder::place_registers() {
  constexpr size_t kForever = SIZE_MAX;
  std::vector<size_t> last_use(program_.registers.size(), 0);
  for (size_t i = 0; i < program_.steps.size(); ++i)
    for_each_input(program_.steps[i], [&](RegisterId reg) { last_use[reg] = i; });
  for (const Step& step : program_.steps)
    if (step.once) last_use[step.out] = kForever;
  for (const Move& move : program_.scatters) last_use[move.reg] = kForever;
  for (const Reduction& reduction : program_.reductions)
    if (!reduction.ends_chain) last_use[reduction.reg] = kForever;
  for (const PickedSum& sum : program_.picked_sums)
    for_each_register(sum, [&](RegisterId reg) { last_use[reg] = kForever; });
  std::vector<uint16_t> free_slots, free_row_slots;
  const auto free_for = [&](const Register& reg) -> std::vector<uint16_t>& {
    return reg.rate == Rate::row ? free_row_slots : free_slots;
  };
  const auto place = [&](Register& reg) {
    if (reg.kind != Register::Kind::scratch) return;
    program_.slot_item = std::max(program_.slot_item, size_of(reg.type));
    std::vector<uint16_t>& free = free_for(reg);
    if (free.empty()) {
      reg.index = reg.rate == Rate::row ? program_.row_slots++ : program_.scratch_slots++;
    } else {
      reg.index = free.back();
      free.pop_back();
    }
  };
  for (const Move& move : program_.gathers) place(program_.registers[move.reg]);
  std::vector<bool> freed(program_.registers.size());
  for (size_t i = 0; i < program_.steps.size(); ++i) {
    const Step& step = program_.steps[i];
    const Register& out = program_.registers[step.out];
    const auto release = [&](bool at_the_same_pace) {
      for_each_input(step, [&](RegisterId input) {
        const Register& reg = program_.registers[input];
        if (reg.kind != Register::Kind::scratch || last_use[input] != i || freed[input]) return;
        if (at_the_same_pace && (size_of(reg.type) != size_of(out.type) || reg.rate != out.rate))
          return;
        freed[input] = true;
        free_for(reg).push_back(reg.index);
      });
    };
    release(true);
    place(program_.registers[step.out]);
    release(false);
  }
}

void ProgramBuilder::choose_tile() {
  const size_t item = std::max<size_t>(1, program_.slot_item) * (program_.scratch_slots + 1);
  const int64_t fits = static_cast<int64_t>(kScratchBytes / item) / kTileStep * kTileStep;
  program_.tile = std::clamp(fits, kMinTile, kMaxTile);
  if (program_.steps.size() == 1 && program_.scratch_slots == 0)
    program_.tile = kTileWithoutScratch;
  if (program_.row)
    program_.tile = std::max<int64_t>(1, program_.tile / program_.row) * program_.row;
}

/// A kernel goes over whole registers, unless they are of different lengths.
void ProgramBuilder::choose_paces() {
  for (Step& step : program_.steps) {
    if (!step.kernel) continue;
    for (int k = 0; k < step.inputs; ++k) {
      const Register& reg = program_.registers[step.in[k]];
      step.by_row |=
          reg.kind != Register::Kind::parameter && reg.rate != program_.registers[step.out].rate;
    }
  }
}

Program ProgramBuilder::finish() && {
  drop_unused_steps();
  put_first_what_is_done_once();
  make_chains(program_, kernels_);
  place_registers();
  choose_tile();
  choose_paces();
  return std::move(program_);
}

}  // namespace lazyeng::fuse
