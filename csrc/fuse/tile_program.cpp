// csrc/fuse/tile_program.cpp: building a program: unused steps out, registers into scratch slots.
#include "csrc/fuse/tile_program.h"

#include <algorithm>

namespace lazyeng::fuse {
namespace {

// What the registers of a tile take together stays within half of the first-level cache, so that
// the tensors' own tiles fit beside it; a tile is long enough that calling kernels costs little.
constexpr size_t kScratchBytes = 16 << 10;
constexpr int64_t kMinTile = 512, kMaxTile = 4096;

}  // namespace

ProgramBuilder::ProgramBuilder(const KernelSet& kernels, int64_t numel, Dims shape)
    : kernels_(kernels) {
  program_.numel = numel;
  program_.shape = std::move(shape);
}

RegisterId ProgramBuilder::new_register(Register::Kind kind, Type type, uint16_t index) {
  program_.registers.push_back({kind, type, index});
  return static_cast<RegisterId>(program_.registers.size() - 1);
}

RegisterId ProgramBuilder::load(TensorAccess tensor) {
  const Type type = tensor.type;
  const bool linear = tensor.linear();
  program_.tensors.push_back(std::move(tensor));
  if (linear) return new_register(Register::Kind::tensor, type, last_tensor());
  const RegisterId reg = new_register(Register::Kind::scratch, type);
  program_.gathers.push_back({last_tensor(), reg});
  return reg;
}

RegisterId ProgramBuilder::parameter(Type type) {
  program_.parameters.push_back(type);
  return new_register(Register::Kind::parameter, type,
                      static_cast<uint16_t>(program_.parameters.size() - 1));
}

RegisterId ProgramBuilder::add_step(Kernel kernel, Type out, std::initializer_list<RegisterId> in) {
  ok_ &= kernel != nullptr;
  Step step;
  step.kernel = kernel;
  step.out = new_register(Register::Kind::scratch, out);
  for (RegisterId reg : in) step.in[step.inputs++] = reg;
  program_.steps.push_back(step);
  return step.out;
}

RegisterId ProgramBuilder::step(Opcode opcode, Type type, Type out,
                                std::initializer_list<RegisterId> in) {
  return add_step(kernels_.kernel(opcode, type), out, in);
}

RegisterId ProgramBuilder::cast(RegisterId from, Type to) {
  return add_step(kernels_.cast(type_of(from), to), to, {from});
}

uint16_t ProgramBuilder::store(RegisterId reg, TensorAccess tensor) {
  if (type_of(reg) != tensor.type) reg = cast(reg, tensor.type);  // to float16 or bfloat16
  program_.tensors.push_back(std::move(tensor));
  if (program_.tensors.back().linear()) {
    program_.registers[reg].kind = Register::Kind::tensor;
    program_.registers[reg].index = last_tensor();
  } else {
    program_.scatters.push_back({last_tensor(), reg});
  }
  return last_tensor();
}

uint16_t ProgramBuilder::reduce(RegisterId reg, Fold fold, double divisor, Type type) {
  TensorAccess tensor;
  tensor.type = type;
  program_.tensors.push_back(std::move(tensor));
  const FoldKernel kernel = kernels_.fold(fold, type_of(reg));
  ok_ &= kernel != nullptr;
  program_.reductions.push_back({fold, kernel, reg, last_tensor(), divisor});
  return last_tensor();
}

void ProgramBuilder::drop_unused_steps() {
  std::vector<bool> used(program_.registers.size());
  for (const Reduction& reduction : program_.reductions) used[reduction.reg] = true;
  for (const Move& move : program_.scatters) used[move.reg] = true;
  std::vector<Step> kept;
  for (size_t i = program_.steps.size(); i-- > 0;) {
    const Step& step = program_.steps[i];
    const bool stored = program_.registers[step.out].kind == Register::Kind::tensor;
    if (!stored && !used[step.out]) continue;
    for (int k = 0; k < step.inputs; ++k) used[step.in[k]] = true;
    kept.push_back(step);
  }
  std::reverse(kept.begin(), kept.end());
  program_.steps = std::move(kept);
  std::erase_if(program_.gathers, [&](const Move& move) { return !used[move.reg]; });
}

/// Linear scan: a slot is taken again once its last reader has run; by that reader's result only if
/// the elements are equally wide, as a kernel goes over its operands at the same pace.
void ProgramBuilder::place_registers() {
  constexpr size_t kForever = SIZE_MAX;
  std::vector<size_t> last_use(program_.registers.size(), 0);
  for (size_t i = 0; i < program_.steps.size(); ++i)
    for (int k = 0; k < program_.steps[i].inputs; ++k) last_use[program_.steps[i].in[k]] = i;
  for (const Move& move : program_.scatters) last_use[move.reg] = kForever;
  for (const Reduction& reduction : program_.reductions) last_use[reduction.reg] = kForever;
  std::vector<uint16_t> free;
  const auto place = [&](Register& reg) {
    if (reg.kind != Register::Kind::scratch) return;
    program_.slot_item = std::max(program_.slot_item, size_of(reg.type));
    if (free.empty()) {
      reg.index = program_.scratch_slots++;
    } else {
      reg.index = free.back();
      free.pop_back();
    }
  };
  for (const Move& move : program_.gathers) place(program_.registers[move.reg]);
  std::vector<bool> freed(program_.registers.size());
  for (size_t i = 0; i < program_.steps.size(); ++i) {
    const Step& step = program_.steps[i];
    const auto release = [&](bool equally_wide) {
      for (int k = 0; k < step.inputs; ++k) {
        const Register& reg = program_.registers[step.in[k]];
        if (reg.kind != Register::Kind::scratch || last_use[step.in[k]] != i || freed[step.in[k]])
          continue;
        if (equally_wide && size_of(reg.type) != size_of(program_.registers[step.out].type))
          continue;
        freed[step.in[k]] = true;
        free.push_back(reg.index);
      }
    };
    release(true);
    place(program_.registers[step.out]);
    release(false);
  }
}

void ProgramBuilder::choose_tile() {
  const size_t item = std::max<size_t>(1, program_.slot_item) * (program_.scratch_slots + 1);
  const int64_t fits = static_cast<int64_t>(kScratchBytes / item) / kLanes * kLanes;
  program_.tile = std::clamp(fits, kMinTile, kMaxTile);
}

Program ProgramBuilder::finish() && {
  drop_unused_steps();
  place_registers();
  choose_tile();
  return std::move(program_);
}

}  // namespace lazyeng::fuse
