// csrc/fuse/tiles/tile_program.h: a group as a program over registers, one tile of elements at a
// time.
//
// The iteration has numel elements, in the order of memory of the results. A tensor that has its
// element i at place i of its memory is *linear*: a register is the memory itself. Any other
// (broadcast, transposed, a strided view) is gathered into scratch before the steps of a tile, and
// scattered after them if it is written. A tensor of one element is a parameter, as numbers are.
//
// Every write of a tensor is a step of its own, in the order of recording, so that within a tile
// everything that reads the old value has done so. Tiles may run in any order and at the same time:
// a tensor that is written is read and written in one way only (the partition sees to that).
//
// An iteration may fall into *rows* of equal length, side by side. Tiles are whole rows then, and a
// register may also hold one element a row, such as the row's sum, or the elements of one row that
// all rows share, such as a bias. So a row passes through all steps, reductions along it and what
// is made of their results included, while it is in the cache.
#pragma once

#include <c10/util/SmallVector.h>

#include <optional>
#include <vector>

#include "csrc/fuse/tiles/tile_kernel.h"

namespace lazyeng::fuse {

using Dims = c10::SmallVector<int64_t, 5>;
using RegisterId = uint16_t;

/// How many elements a register has; what is not `element` needs a program with rows.
enum class Rate : uint8_t {
  element,  ///< as many as the tile
  row,      ///< one for each row of the tile, each repeated kLanes times: a splat for its row (of
            ///< short rows twice: Program::lanes)
  column,   ///< as many as a row: every row has the same
};

struct Register {
  /// `nowhere`: the result of a chain that is added to a sum.
  enum class Kind : uint8_t { scratch, tensor, parameter, nowhere };
  Kind kind = Kind::scratch;
  Type type = Type::f32;
  Rate rate = Rate::element;
  uint16_t index = 0;  ///< of the scratch slot, the tensor, the parameter
};

/// How elements are folded into one.
struct Folding {
  Fold fold = Fold::sum;
  FoldKernel kernel = nullptr;
  ColumnsKernel columns;
  double divisor = 1;  ///< of floats: the mean is a sum, divided
};

/// A kernel, a chain of steps, or (without either) a fold of each row.
struct Step {
  Kernel kernel = nullptr;
  const ChainKernels* chain = nullptr;
  std::vector<Step> links;      ///< of a chain; each but the first reads the result before it
  LinkFunction link = nullptr;  ///< of a link other than a cast; the value is its operand `place`
  int place = 0;
  int widened = -1;    ///< of a link that reads a narrow dtype: the register that widens it
  int reduction = -1;  ///< of a chain that ends in the sum of one
  Folding folding;
  RowsKernel rows = nullptr;         ///< in the place of `folding`: a fold in the order of torch's
                                     ///< kernels, or one that makes new rows
  RowFold row_fold = RowFold::none;  ///< what `rows` does
  int64_t ignored = 0;               ///< RowsArgs::ignored
  int64_t inner = 1;                 ///< RowsArgs::inner
  bool by_row = false;   ///< the kernel is called for each row: an input has another rate
  bool spreads = false;  ///< no kernel: each element gets that of its row, or its column
  bool once = false;     ///< what it makes is the same for all tiles
  RegisterId out = 0;
  uint8_t inputs = 0;
  Opcode opcode = Opcode::copy;
  RegisterId in[kMaxInputs] = {};
  uint16_t member = 0;      ///< of the group, that it is for
  bool may_refuse = false;  ///< that may refuse operands
};

inline bool folds_rows(const Step& step) { return !step.kernel && !step.chain && !step.spreads; }

/// Calls f with each register that the step reads, those inside of a chain left out.
template <class F>
void for_each_input(const Step& step, const F& f) {
  for (size_t i = 0; i < step.links.size(); ++i)
    for (int k = 0; k < step.links[i].inputs; ++k)
      if (i == 0 || step.links[i].in[k] != step.links[i - 1].out) f(step.links[i].in[k]);
  for (int k = 0; k < step.inputs; ++k) f(step.in[k]);
}

/// A tensor in memory, as the iteration goes over it.
struct TensorAccess {
  Type type = Type::f32;
  Dims strides;  ///< over the shape, in elements; empty: linear, at its rate
  Rate rate = Rate::element;
  bool linear() const { return strides.empty() && rate != Rate::row; }
};

/// A tensor that is no register as it is, and the register that it is gathered into or scattered
/// from.
struct Move {
  uint16_t tensor;
  RegisterId reg;
};

/// The elements that a fold goes over, and the place of the total that each is added to. The shape
/// need not be that of the program. Innermost the stride is 0 or 1.
struct Places {
  Dims shape;
  Dims strides;
  int64_t totals = 1;  ///< 1: of all elements, whatever the shape
};

/// A register folded over the whole iteration, into a tensor of one element, or of those that are
/// not folded together. Each thread has totals of its own, which are added in the order of threads.
struct Reduction {
  Folding folding;
  RegisterId reg = 0;
  uint16_t tensor = 0;
  Places places;
  /// To one element, in the order of torch's kernel for elements of that type.
  const SumKernel* sum = nullptr;
  Type sum_of = Type::f32;
  bool ends_chain = false;
};

/// Of each row the element at the place that its target names, all of them added up in torch's
/// order (csrc/fuse/tiles/picked_sum.h).
struct PickedSum {
  RegisterId rows = 0;
  uint16_t targets = 0;               ///< a tensor of int64, one for each row, without gaps
  std::optional<RegisterId> weights;  ///< of the places, which all rows share
  int64_t ignored = 0;                ///< a target whose rows do not count
  bool mean = false;                  ///< divided by all the weight
  std::optional<uint16_t> loss = {}, total_weight = {};  ///< the tensors that are needed
};

/// Calls f with each register that the sum reads when a tile's steps are done.
template <class F>
void for_each_register(const PickedSum& sum, const F& f) {
  f(sum.rows);
  if (sum.weights) f(*sum.weights);
}

inline constexpr int64_t kLongEnoughRow = 64;

struct Program {
  int64_t numel = 0;
  int64_t row = 0;  ///< elements of a row; 0: there are none
  Dims shape;       ///< of the iteration, outermost first; only what is not linear needs it
  std::vector<Register> registers;
  std::vector<TensorAccess> tensors;
  std::vector<Type> parameters;
  std::vector<Step> steps;
  std::vector<Move> gathers;
  std::vector<Move> scatters;
  std::vector<Reduction> reductions;
  std::vector<PickedSum> picked_sums;
  uint16_t scratch_slots = 0;
  uint16_t row_slots = 0;  ///< for registers of one element a row
  size_t slot_item = 0;    ///< bytes of an element, of the widest register in scratch
  int64_t tile = 0;        ///< elements; whole rows if there are any

  /// A kernel that is called for each of such rows would do little at a time: what there is once a
  /// row or a column is spread to all elements before steps go over them.
  bool has_short_rows() const { return row > 0 && row < kLongEnoughRow; }
  /// Elements of a register of one element a row, for each row.
  int64_t lanes() const { return has_short_rows() ? 2 : kLanes; }
};

/// Builds a program step by step; finish() drops steps whose result nobody uses, and gives the
/// registers their places. A null kernel anywhere makes it not ok().
class ProgramBuilder {
 public:
  ProgramBuilder(const KernelSet& kernels, int64_t numel, int64_t row, Dims shape);

  /// The rate of what is made of parameters alone.
  void set_rate(Rate rate) { rate_ = rate; }

  /// Steps from now on are for this member of the group. What may refuse its operands is done also
  /// if nobody needs the result: its error is not lost.
  void begin_member(size_t member, bool may_refuse) {
    member_ = static_cast<uint16_t>(member);
    may_refuse_ = may_refuse;
  }
  /// The elements of a tensor as they are before the program.
  RegisterId load(TensorAccess tensor);
  RegisterId parameter(Type type);
  /// `kernel` takes the place of the set's own, if there is one.
  RegisterId step(Opcode opcode, Type type, Type out, std::initializer_list<RegisterId> in,
                  Kernel kernel = nullptr);
  /// Of a register that a fold with two results has made.
  RegisterId half(RegisterId pair, bool second);
  RegisterId cast(RegisterId from, Type to);
  /// Each row of the register folded, into a register of one element a row.
  RegisterId fold_rows(RegisterId reg, Fold fold, double divisor, Type out);
  /// The same in the order of torch's kernels, in the type of the first register, whose rows are
  /// folded, or new rows made of them (makes_rows). The others stay as they are. `order_of`: as
  /// torch's kernel for that type does it, which the register's values are of.
  RegisterId rows(RowFold fold, std::initializer_list<RegisterId> in, double divisor = 1,
                  std::optional<Type> order_of = {});
  /// The same of rows that are layers of `inner` elements, along these.
  RegisterId rows_across(RowFold fold, RegisterId reg, int64_t inner);
  /// Rows of 0 with one value each, at the place that an int64 of each row names. Both have one
  /// element a row.
  RegisterId one_hot(RegisterId value, RegisterId place, std::optional<RegisterId> weights,
                     int64_t ignored);
  /// The tensor gets what the register, which is the result of a step, holds. Returns its number,
  /// as load() does through last_tensor().
  uint16_t store(RegisterId reg, TensorAccess tensor);

  /// The tensor gets the register folded. Returns its number.
  /// `sum_of`: a sum of all elements in the order of torch's kernel for that type, which the
  /// register's values are of.
  uint16_t reduce(RegisterId reg, Fold fold, double divisor, Type type, Places places,
                  std::optional<Type> sum_of = {});
  /// The tensor gets the loss, or all the weight. Returns its number. `targets`: a register that
  /// was loaded. `sum` says nothing of these.
  uint16_t sum_picked(PickedSum sum, RegisterId targets, bool total_weight);

  Type type_of(RegisterId reg) const { return program_.registers[reg].type; }
  uint16_t last_tensor() const { return static_cast<uint16_t>(program_.tensors.size() - 1); }
  bool ok() const { return ok_; }
  Program finish() &&;

 private:
  RegisterId new_register(Register::Kind kind, Type type, uint16_t index = 0);
  RegisterId add_step(Kernel kernel, Opcode opcode, Type out, std::initializer_list<RegisterId> in);
  Rate rate_of(const Step& step) const;
  RegisterId spread(RegisterId reg);
  RegisterId before_rounding(RegisterId reg, Type narrow) const;
  Folding folding(RegisterId reg, Fold fold, double divisor);
  RegisterId add_fold(Step step, Type out, c10::ArrayRef<RegisterId> in);
  RegisterId add_rows(Step step, RowFold fold, c10::ArrayRef<RegisterId> in, Type order_of);
  void drop_unused_steps();
  void put_first_what_is_done_once();
  void place_registers();
  void choose_tile();
  void choose_paces();

  const KernelSet& kernels_;
  Program program_;
  Rate rate_ = Rate::element;
  uint16_t member_ = 0;
  bool may_refuse_ = false;
  bool ok_ = true;
};

/// What one run of a program works on. Nothing here is owned.
struct Bindings {
  std::vector<char*> tensors;  ///< the first element of each
  /// kLanes copies of each parameter, 64-byte aligned, kSplatBytes apart.
  char* splats = nullptr;
};
inline constexpr size_t kSplatBytes = kLanes * 8;

/// Where a program runs: on this thread, on all of the intra-op pool, or here and on threads that
/// have nothing else to do (run/cores/parts.h).
enum class Cores : uint8_t { one, team, parts };

/// Runs the program. Throws only std::bad_alloc. False: of a maximum or
/// minimum that is zero, torch may have found one with another sign; or a kernel has refused
/// operands (KernelArgs::refused).
bool run_program(const Program& program, const Bindings& bindings, Cores cores);

}  // namespace lazyeng::fuse
