// csrc/fuse/tiles/chains.cpp: finding chains.
#include "csrc/fuse/tiles/chains.h"

#include <algorithm>
#include <span>

namespace lazyeng::fuse {
namespace {

std::span<const RegisterId> inputs_of(const Step& step) { return {step.in, step.inputs}; }

bool is_narrow(Type type) { return type == Type::f16 || type == Type::bf16; }

/// Whether a NaN that comes of it is one of the operands' NaNs, or the processor's own.
bool hands_on_nans(Opcode opcode) {
  switch (opcode) {
    case Opcode::copy:
    case Opcode::add:
    case Opcode::sub:
    case Opcode::mul:
    case Opcode::div:
    case Opcode::square:
    case Opcode::neg:
    case Opcode::abs:
    case Opcode::relu:
    case Opcode::clamp:
      return true;
    default:  // (that of maximum and minimum has all bits)
      return false;
  }
}

/// Of each register, whether all NaNs in it have nothing in the half that rounding to bfloat16 cuts
/// off: what was widened or rounded, numbers (csrc/fuse/binding.cpp), and what comes of these.
std::vector<bool> find_short_nans(const Program& program) {
  std::vector<bool> found;
  for (const Register& reg : program.registers)
    found.push_back(reg.kind == Register::Kind::parameter || reg.type == Type::bf16);
  for (const Step& step : program.steps) {
    if (!step.kernel) continue;
    const bool given =
        std::ranges::all_of(inputs_of(step), [&](RegisterId id) { return found[id]; });
    found[step.out] = step.opcode == Opcode::round_bf16 ||
                      (given && (step.opcode == Opcode::cast || hands_on_nans(step.opcode)));
  }
  return found;
}

class Finder {
 public:
  Finder(Program& program, const KernelSet& kernels)
      : program_(program),
        kernels_(kernels),
        uses_(program.registers.size()),
        short_nans_(find_short_nans(program)) {
    for (const Step& step : program.steps)
      for (int k = 0; k < step.inputs; ++k) ++uses_[step.in[k]];
    for (const Move& move : program.scatters) ++uses_[move.reg];
    for (const Reduction& reduction : program.reductions) ++uses_[reduction.reg];
    for (const PickedSum& sum : program.picked_sums)
      for_each_register(sum, [this](RegisterId reg) { ++uses_[reg]; });
  }

  void run() {
    std::vector<Step> steps;
    for (Step& step : program_.steps) {
      if (!links_.empty() && !follows(step)) end_chain(steps);
      if (links_.empty() && !begins(step)) {
        steps.push_back(std::move(step));
        continue;
      }
      operands_ += operands_in_memory(step) - (links_.empty() ? 0 : 1);
      links_.push_back(std::move(step));
    }
    if (!links_.empty()) end_chain(steps);
    program_.steps = std::move(steps);
  }

 private:
  const Register& reg(RegisterId id) const { return program_.registers[id]; }

  /// In memory, as many as the tile has; no parameter.
  bool has_all_elements(RegisterId id) const {
    return reg(id).kind != Register::Kind::parameter && reg(id).rate == Rate::element;
  }

  size_t operands_in_memory(const Step& step) const {
    return static_cast<size_t>(std::ranges::count_if(
        inputs_of(step), [&](RegisterId id) { return has_all_elements(id); }));
  }

  /// Whether it goes over splats and registers of all elements, of the type of its result.
  bool is_even(const Step& step) const {
    const Type type = reg(step.out).type;
    return step.kernel && has_all_elements(step.out) &&
           std::ranges::all_of(inputs_of(step), [&](RegisterId id) {
             return reg(id).type == type &&
                    (reg(id).kind == Register::Kind::parameter || has_all_elements(id));
           });
  }

  /// Links stand for kernels of the set, not for functions of torch.
  bool is_of_set(const Step& step) const {
    return step.kernel == kernels_.kernel(step.opcode, reg(step.in[0]).type);
  }

  bool is_whole_cast(const Step& step) const {
    return step.opcode == Opcode::cast && step.kernel && has_all_elements(step.in[0]) &&
           has_all_elements(step.out);
  }
  bool widens(const Step& step) const {
    return is_whole_cast(step) && is_narrow(reg(step.in[0]).type);
  }
  bool narrows(const Step& step) const {
    return is_whole_cast(step) && is_narrow(reg(step.out).type);
  }

  /// Gives the step its function. False: there is none for the value at that place.
  bool find_link(Step& step, int place) const {
    if (!is_even(step) || !is_of_set(step)) return false;
    const ChainKernels* chain = kernels_.chains(reg(step.out).type);
    step.link = chain ? chain->link(step.opcode, place, reg(step.out).type) : nullptr;
    step.place = place;
    if (step.link && step.opcode == Opcode::round_bf16 && short_nans_[step.in[0]])
      step.link = chain->rounds_short_nans();
    return step.link != nullptr;
  }

  static int64_t count(const Step& step, RegisterId value) {
    return std::ranges::count(inputs_of(step), value);
  }

  /// The same for what hands on this register.
  bool find_link_for(Step& step, RegisterId value) const {
    const auto reads = count(step, value);
    if (reads == 2 && step.inputs == 2) return find_link(step, kEveryPlace);
    const auto inputs = inputs_of(step);
    return reads == 1 &&
           find_link(step, static_cast<int>(std::ranges::find(inputs, value) - inputs.begin()));
  }

  bool begins(Step& step) const {
    if (widens(step)) return kernels_.chains(reg(step.out).type) != nullptr;
    for (RegisterId value : inputs_of(step))
      if (has_all_elements(value)) return find_link_for(step, value);
    return false;
  }

  bool follows(Step& step) const {
    const Step& last = links_.back();
    const RegisterId value = last.out;
    const auto reads = count(step, value);
    if (narrows(last) || reg(value).kind != Register::Kind::scratch || reads == 0 ||
        uses_[value] != reads)
      return false;
    if (narrows(step)) return true;
    if (links_.size() + 2 >= kMaxLinks ||
        operands_ + operands_in_memory(step) > kMaxChainOperands + static_cast<size_t>(reads))
      return false;
    return find_link_for(step, value);
  }

  /// The sum that takes the register, and is all that does; -1: none.
  int sum_of(RegisterId id) const {
    if (reg(id).kind != Register::Kind::scratch || uses_[id] != 1 || program_.row) return -1;
    const auto found = std::ranges::find_if(program_.reductions, [&](const Reduction& reduction) {
      return reduction.reg == id && reduction.sum;
    });
    return found == program_.reductions.end()
               ? -1
               : static_cast<int>(found - program_.reductions.begin());
  }

  /// The step among those before the chain that widens what only the link reads; none if memory is
  /// written since, which it would then read later.
  std::vector<Step>::iterator widening_of(RegisterId id, const Step& link,
                                          std::vector<Step>& steps) const {
    for (auto step = steps.end(); step != steps.begin();) {
      --step;
      if (step->out == id)
        return widens(*step) && uses_[id] == count(link, id) ? step : steps.end();
      if (reg(step->out).kind == Register::Kind::tensor) break;
    }
    return steps.end();
  }

  /// Operands that are widened before the chain are, in place of that, as it reads them.
  void take_widenings(std::vector<Step>& steps) {
    for (Step& link : links_) {
      if (!link.link || link.inputs != 2 || link.place == kEveryPlace) continue;
      const int other = 1 - link.place;
      const auto widening = widening_of(link.in[other], link, steps);
      if (widening == steps.end()) continue;
      const ChainKernels* chain = kernels_.chains(reg(link.out).type);
      const Type memory = reg(widening->in[0]).type;
      const LinkFunction narrow = chain->link(link.opcode, link.place, memory);
      if (!narrow) continue;
      link.link = narrow;
      link.widened = link.in[other];
      link.in[other] = widening->in[0];
      steps.erase(widening);
    }
    if (!links_[0].link || links_.size() + 2 >= kMaxLinks) return;
    const RegisterId value = links_[0].in[std::max(links_[0].place, 0)];
    const auto widening = widening_of(value, links_[0], steps);
    if (widening == steps.end()) return;
    Step first = std::move(*widening);
    steps.erase(widening);
    links_.insert(links_.begin(), std::move(first));
  }

  void end_in_sum(Step& chain) {
    chain.reduction = sum_of(chain.out);
    if (chain.reduction < 0) return;
    program_.registers[chain.out].kind = Register::Kind::nowhere;
    program_.reductions[static_cast<size_t>(chain.reduction)].ends_chain = true;
  }

  void end_chain(std::vector<Step>& steps) {
    if (links_.size() == 1 && (widens(links_[0]) || sum_of(links_[0].out) < 0)) {
      steps.push_back(std::move(links_[0]));
    } else {
      take_widenings(steps);
      Step chain;
      const Step& last = links_.back();
      chain.chain = kernels_.chains(reg(narrows(last) ? last.in[0] : last.out).type);
      chain.out = last.out;
      chain.member = last.member;
      chain.links = std::move(links_);
      end_in_sum(chain);
      steps.push_back(std::move(chain));
    }
    links_.clear();
    operands_ = 0;
  }

  Program& program_;
  const KernelSet& kernels_;
  std::vector<int64_t> uses_;  // of each register
  std::vector<bool> short_nans_;
  std::vector<Step> links_;  // of the chain at hand
  size_t operands_ = 0;      // of it, in memory
};

}  // namespace

void make_chains(Program& program, const KernelSet& kernels) { Finder(program, kernels).run(); }

RegisterId first_value(const Step& chain) {
  const Step& first = chain.links[0];
  return first.in[first.link ? std::max(first.place, 0) : 0];
}

}  // namespace lazyeng::fuse
