// csrc/fuse/tile_program.h: a group as a program over registers, one tile of elements at a time.
//
// The iteration has numel elements, in the order of memory of the results. A tensor that has its
// element i at place i of its memory is *linear*: a register is the memory itself. Any other
// (broadcast, transposed, a strided view) is gathered into scratch before the steps of a tile, and
// scattered after them if it is written. A tensor of one element is a parameter, as numbers are.
//
// Every write of a tensor is a step of its own, in the order of recording, so that within a tile
// everything that reads the old value has done so. Tiles may run in any order and at the same time:
// a tensor that is written is read and written in one way only (the partition sees to that).
#pragma once

#include <c10/util/SmallVector.h>

#include <vector>

#include "csrc/fuse/tile_kernel.h"

namespace lazyeng::fuse {

using Dims = c10::SmallVector<int64_t, 5>;
using RegisterId = uint16_t;

struct Register {
  enum class Kind : uint8_t { scratch, tensor, parameter };
  Kind kind = Kind::scratch;
  Type type = Type::f32;
  uint16_t index = 0;  ///< of the scratch slot, the tensor, the parameter
};

struct Step {
  Kernel kernel = nullptr;
  RegisterId out = 0;
  uint8_t inputs = 0;
  RegisterId in[kMaxInputs] = {};
};

/// A tensor in memory, as the iteration goes over it.
struct TensorAccess {
  Type type = Type::f32;
  Dims strides;  ///< over the shape, in elements; empty: linear
  bool linear() const { return strides.empty(); }
};

/// A tensor that is not linear, and the register that it is gathered into or scattered from.
struct Move {
  uint16_t tensor;
  RegisterId reg;
};

/// A register folded over the whole iteration, into a tensor of one element.
struct Reduction {
  Fold fold = Fold::sum;
  FoldKernel kernel = nullptr;
  RegisterId reg = 0;
  uint16_t tensor = 0;
  double divisor = 1;  ///< of floats: the mean is a sum, divided
};

struct Program {
  int64_t numel = 0;
  Dims shape;  ///< of the iteration, outermost first; only what is not linear needs it
  std::vector<Register> registers;
  std::vector<TensorAccess> tensors;
  std::vector<Type> parameters;
  std::vector<Step> steps;
  std::vector<Move> gathers;
  std::vector<Move> scatters;
  std::vector<Reduction> reductions;
  uint16_t scratch_slots = 0;
  size_t slot_item = 0;  ///< bytes of an element, of the widest register in scratch
  int64_t tile = 0;      ///< elements
};

/// Builds a program step by step; finish() drops steps whose result nobody uses, and gives the
/// registers their places. A null kernel anywhere makes it not ok().
class ProgramBuilder {
 public:
  ProgramBuilder(const KernelSet& kernels, int64_t numel, Dims shape);

  /// The elements of a tensor as they are before the program.
  RegisterId load(TensorAccess tensor);
  RegisterId parameter(Type type);
  RegisterId step(Opcode opcode, Type type, Type out, std::initializer_list<RegisterId> in);
  RegisterId cast(RegisterId from, Type to);
  /// The tensor gets what the register, which is the result of a step, holds. Returns its number,
  /// as load() does through last_tensor().
  uint16_t store(RegisterId reg, TensorAccess tensor);

  /// The tensor, of one element, gets the register folded. Returns its number.
  uint16_t reduce(RegisterId reg, Fold fold, double divisor, Type type);

  Type type_of(RegisterId reg) const { return program_.registers[reg].type; }
  uint16_t last_tensor() const { return static_cast<uint16_t>(program_.tensors.size() - 1); }
  bool ok() const { return ok_; }
  Program finish() &&;

 private:
  RegisterId new_register(Register::Kind kind, Type type, uint16_t index = 0);
  RegisterId add_step(Kernel kernel, Type out, std::initializer_list<RegisterId> in);
  void drop_unused_steps();
  void place_registers();
  void choose_tile();

  const KernelSet& kernels_;
  Program program_;
  bool ok_ = true;
};

/// What one run of a program works on. Nothing here is owned.
struct Bindings {
  std::vector<char*> tensors;  ///< the first element of each
  /// kLanes copies of each parameter, 64-byte aligned, kSplatBytes apart.
  char* splats = nullptr;
};
inline constexpr size_t kSplatBytes = kLanes * 8;

/// Runs the program. With `wide`, on all threads of the intra-op pool, otherwise on this one.
/// Throws only std::bad_alloc, before anything is written.
void run_program(const Program& program, const Bindings& bindings, bool wide);

}  // namespace lazyeng::fuse
