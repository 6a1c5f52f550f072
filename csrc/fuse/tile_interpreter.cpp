// csrc/fuse/tile_interpreter.cpp: running a program: tile after tile, on one thread or on all.
#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <memory>

#include "csrc/fuse/tiles/chains.h"
#include "csrc/fuse/tiles/moves.h"
#include "csrc/fuse/tiles/picked_sum.h"
#include "csrc/fuse/tiles/prefetch.h"
#include "csrc/fuse/tiles/totals.h"
#include "csrc/fuse/tiles/upper_halves.h"
#include "csrc/run/cores/openmp_team.h"
#include "csrc/run/cores/parts.h"

namespace lazyeng::fuse {
namespace {

using engine::kCacheLineBytes;

size_t slot_bytes(const Program& program) {
  return (static_cast<size_t>(program.tile) * program.slot_item + kCacheLineBytes - 1) /
         kCacheLineBytes * kCacheLineBytes;
}

size_t row_slot_bytes(const Program& program) {
  if (!program.row) return 0;
  const int64_t elements = program.tile / program.row * program.lanes();
  return (static_cast<size_t>(elements) * program.slot_item + kCacheLineBytes - 1) /
         kCacheLineBytes * kCacheLineBytes;
}

/// One thread's registers, and the tiles that it runs.
class Worker {
 public:
  /// `elements`: that it will be given.
  Worker(const Program& program, const Bindings& bindings, char* scratch, int64_t elements)
      : program_(program), bindings_(bindings), place_(program.registers.size()) {
    size_t most = 0;
    for (const Step& step : program.steps) most = std::max(most, step.links.size());
    links_.reserve(most + 2);  // (no memory is asked for once it runs)
    for (const PickedSum& sum : program.picked_sums)
      picked_.emplace_back(program.registers[sum.rows].type, elements / program.row,
                           sum.weights.has_value());
    for (const Reduction& reduction : program.reductions)
      totals_.emplace_back(reduction, program.registers[reduction.reg].type, elements);
    char* const row_scratch = scratch + program.scratch_slots * slot_bytes(program);
    for (size_t r = 0; r < place_.size(); ++r) {
      const Register& reg = program.registers[r];
      if (reg.kind == Register::Kind::scratch)
        place_[r] = reg.rate == Rate::row ? row_scratch + reg.index * row_slot_bytes(program)
                                          : scratch + reg.index * slot_bytes(program);
      if (reg.kind == Register::Kind::parameter)
        place_[r] = bindings.splats + reg.index * kSplatBytes;
    }
  }

  /// The n elements from `first` on; whole rows if there are any. `next`: as many come after them.
  void run(int64_t first, int64_t n, bool next) {
    Prefetch prefetch(program_, bindings_, first + n, next ? n : 0);
    for (size_t r = 0; r < place_.size(); ++r) {
      const Register& reg = program_.registers[r];
      if (reg.kind != Register::Kind::tensor) continue;
      const int64_t from = reg.rate == Rate::column ? 0 : first;
      place_[r] = bindings_.tensors[reg.index] + from * static_cast<int64_t>(size_of(reg.type));
    }
    for (const Move& move : program_.gathers)
      gather(program_, program_.tensors[move.tensor], bindings_.tensors[move.tensor],
             place_[move.reg], first, n);
    for (const Step& step : program_.steps) {
      if (!step.once || !has_run_) run_step(step, n);
      prefetch.advance();
    }
    has_run_ = true;
    for (const Move& move : program_.scatters)
      scatter(program_, program_.tensors[move.tensor], bindings_.tensors[move.tensor],
              place_[move.reg], first, n);
    for (size_t r = 0; r < totals_.size(); ++r)
      if (!program_.reductions[r].ends_chain)
        totals_[r].fold(place_[program_.reductions[r].reg], first, n);
    for (size_t p = 0; p < picked_.size(); ++p) pick(p, first / program_.row, n / program_.row);
  }

  /// After the last tile.
  void finish() {
    for (Totals& totals : totals_) totals.finish();
  }

  std::vector<Totals>& totals() { return totals_; }
  std::vector<PickedRows>& picked() { return picked_; }
  /// Of a row's fold, or as a kernel has refused an operand.
  bool uncertain() const { return uncertain_; }

 private:
  void pick(size_t p, int64_t first_row, int64_t rows) {
    const PickedSum& sum = program_.picked_sums[p];
    RowsToPick from{};
    from.elements = place_[sum.rows];
    from.row = program_.row;
    from.targets = reinterpret_cast<const int64_t*>(bindings_.tensors[sum.targets]) + first_row;
    if (sum.weights) {
      from.weights = place_[*sum.weights];
      from.weight_step = program_.registers[*sum.weights].kind != Register::Kind::parameter;
    }
    uncertain_ |= !picked_[p].pick(from, rows, sum.ignored);
  }

  void run_step(const Step& step, int64_t n) {
    if (step.chain)
      run_chain(step, n);
    else if (step.spreads)
      spread(step, n / program_.row);
    else if (folds_rows(step))
      fold_rows(step, n / program_.row);
    else if (step.by_row)
      run_by_row(step, n / program_.row);
    else
      run_whole(step, n);
  }

  /// Elements in scratch that a register has for n elements of the iteration.
  int64_t length(const Register& reg, int64_t n) const {
    if (reg.rate == Rate::element) return n;
    return reg.rate == Rate::column ? program_.row : n / program_.row * program_.lanes();
  }

  void run_whole(const Step& step, int64_t n) {
    KernelArgs args{};
    args.refused = &uncertain_;
    args.n = length(program_.registers[step.out], n);
    args.out = place_[step.out];
    for (int k = 0; k < step.inputs; ++k) {
      args.in[k] = place_[step.in[k]];
      args.step[k] = program_.registers[step.in[k]].kind != Register::Kind::parameter;
    }
    step.kernel(args);
  }

  /// Casts at the ends are how the value is loaded and stored.
  void run_chain(const Step& chain, int64_t n) {
    RegisterId value = first_value(chain);
    const Type in = type_of(value), out = type_of(chain.out);
    links_.clear();
    links_.push_back({chain.chain->first(in), {place_[value]}, {1}, {size_of(in)}});
    for (const Step& step : chain.links) {
      if (step.link) links_.push_back(link_of(step));
    }
    const SumKernel* sum = nullptr;
    if (chain.reduction >= 0) {
      const auto reduction = static_cast<size_t>(chain.reduction);
      sum = program_.reductions[reduction].sum;
      const Type type = program_.reductions[reduction].sum_of;
      links_.push_back({chain.chain->sum(type), {totals_[reduction].state()}, {}, {}});
    } else {
      links_.push_back({chain.chain->last(out), {place_[chain.out]}, {}, {}});
    }
    chain.chain->run({links_.data(), links_.size(), out, n, sum});
    clear_upper_halves();
  }

  Link link_of(const Step& step) const {
    Link link{};
    link.run = step.link;
    for (int k = 0; k < step.inputs; ++k) {
      if (k == step.place || step.place == kEveryPlace) continue;
      link.in[k] = place_[step.in[k]];
      link.item[k] = size_of(type_of(step.in[k]));
      link.step[k] = program_.registers[step.in[k]].kind != Register::Kind::parameter;
    }
    return link;
  }

  Type type_of(RegisterId reg) const { return program_.registers[reg].type; }

  /// An element of a register at row rate is a splat for its row.
  void run_by_row(const Step& step, int64_t rows) {
    KernelArgs args{};
    args.refused = &uncertain_;
    args.n = program_.row;
    args.out = place_[step.out];
    const int64_t out_stride = program_.row * item(step.out);
    int64_t strides[kMaxInputs] = {};
    for (int k = 0; k < step.inputs; ++k) {
      const Register& reg = program_.registers[step.in[k]];
      const bool parameter = reg.kind == Register::Kind::parameter;
      args.in[k] = place_[step.in[k]];
      args.step[k] = !parameter && reg.rate != Rate::row;
      strides[k] = item(step.in[k]) * elements_of_row(reg);
    }
    for (int64_t row = 0; row < rows; ++row) {
      step.kernel(args);
      args.out += out_stride;
      for (int k = 0; k < step.inputs; ++k) args.in[k] += strides[k];
    }
  }

  void spread(const Step& step, int64_t rows) const {
    const Register& from = program_.registers[step.in[0]];
    const size_t item = size_of(from.type);
    if (from.rate == Rate::row)
      spread_rows(place_[step.in[0]], program_.lanes(), place_[step.out], program_.row, rows, item);
    else
      spread_columns(place_[step.in[0]], place_[step.out], program_.row, rows, item);
  }

  /// Of a step's input, from a row to the next.
  int64_t elements_of_row(const Register& reg) const {
    if (reg.kind == Register::Kind::parameter || reg.rate == Rate::column) return 0;
    return reg.rate == Rate::row ? program_.lanes() : program_.row;
  }

  void run_rows(const Step& step, int64_t rows) {
    RowsArgs args{};
    args.out = place_[step.out];
    for (int k = 0; k < step.inputs; ++k) {
      const Register& reg = program_.registers[step.in[k]];
      args.in[k] = place_[step.in[k]];
      args.next_row[k] = elements_of_row(reg);
      args.step[k] = reg.kind != Register::Kind::parameter && reg.rate != Rate::row;
    }
    args.lanes = program_.lanes();
    args.row = program_.row;
    args.rows = rows;
    args.divisor = step.folding.divisor;
    args.ignored = step.ignored;
    args.inner = step.inner;
    args.refused = &uncertain_;
    step.rows(args);
  }

  void fold_rows(const Step& step, int64_t rows) {
    if (step.rows) return run_rows(step, rows);
    const Type type = program_.registers[step.out].type;
    const char* in = place_[step.in[0]];
    char* out = place_[step.out];
    for (int64_t row = 0; row < rows; ++row) {
      Total total = empty_total(step.folding.fold);
      step.folding.kernel(in, program_.row, total);
      uncertain_ |= is_uncertain(step.folding.fold, total);
      write_total(out, type, total, step.folding.divisor);
      fill_splat(out, size_of(type), program_.lanes());
      in += program_.row * item(step.in[0]);
      out += program_.lanes() * item(step.out);
    }
  }

  int64_t item(RegisterId reg) const {
    return static_cast<int64_t>(size_of(program_.registers[reg].type));
  }

  const Program& program_;
  const Bindings& bindings_;
  std::vector<char*> place_;
  std::vector<Link> links_;  // of the chain at hand
  std::vector<Totals> totals_;
  std::vector<PickedRows> picked_;
  bool has_run_ = false;  // a tile, which is no shorter than those after it
  bool uncertain_ = false;
};

/// Fewer elements are one thread's in torch.
constexpr int64_t kTorchsGrain = 32768;

bool has_torchs_sums(const Program& program) {
  return std::ranges::any_of(program.reductions,
                             [](const Reduction& reduction) { return reduction.sum != nullptr; });
}

/// Whether torch would have several threads add up the elements, each those of its own share.
bool shares_elements(const Program& program) {
  return program.numel >= kTorchsGrain && at::get_num_threads() > 1;
}

int64_t rounded_up(int64_t n, int64_t divisor) { return (n + divisor - 1) / divisor; }

/// Where the share of each worker begins, and where the last one ends. Of sums in torch's order
/// these are torch's, whatever threads there are.
std::vector<int64_t> shares_of(const Program& program, bool wide) {
  const int64_t tiles = rounded_up(program.numel, program.tile);
  std::vector<int64_t> bounds{0};
  if (has_torchs_sums(program)) {
    const int64_t most = shares_elements(program) ? rounded_up(program.numel, kTorchsGrain) : 1;
    const int64_t share = rounded_up(program.numel, std::min<int64_t>(at::get_num_threads(), most));
    while (bounds.back() < program.numel)
      bounds.push_back(std::min(bounds.back() + share, program.numel));
    return bounds;
  }
  const int64_t threads = wide ? std::min<int64_t>(tiles, at::get_num_threads()) : 1;
  for (int64_t t = 1; t <= threads; ++t)
    bounds.push_back(std::min(tiles * t / threads * program.tile, program.numel));
  return bounds;
}

/// Writes the totals. False: some may not be torch's.
bool finish_reductions(const Program& program, const Bindings& bindings,
                       std::vector<Worker>& workers) {
  bool certain = true;
  for (size_t r = 0; r < program.reductions.size(); ++r) {
    const uint16_t tensor = program.reductions[r].tensor;
    Totals& totals = workers[0].totals()[r];
    if (program.reductions[r].sum && shares_elements(program)) {
      std::vector<const Totals*> all;
      for (Worker& worker : workers) all.push_back(&worker.totals()[r]);
      totals.join(all, at::get_num_threads());
    }
    if (!program.reductions[r].sum)
      for (size_t w = 1; w < workers.size(); ++w) totals.add(workers[w].totals()[r]);
    totals.write(bindings.tensors[tensor], program.tensors[tensor].type);
    certain &= !totals.uncertain();
  }
  for (const Worker& worker : workers) certain &= !worker.uncertain();
  return certain;
}

void write_picked_sums(const Program& program, const Bindings& bindings,
                       std::vector<Worker>& workers) {
  for (size_t p = 0; p < program.picked_sums.size(); ++p) {
    std::vector<PickedRows*> rows;
    for (Worker& worker : workers) rows.push_back(&worker.picked()[p]);
    PickedRows::write_sum(program.picked_sums[p], rows, bindings.tensors);
  }
}

size_t scratch_bytes(const Program& program) {
  return program.scratch_slots * slot_bytes(program) + program.row_slots * row_slot_bytes(program) +
         kCacheLineBytes;
}

char* aligned(char* memory) {
  const auto address = reinterpret_cast<uintptr_t>(memory);
  return memory + (kCacheLineBytes - address % kCacheLineBytes) % kCacheLineBytes;
}

}  // namespace

bool run_program(const Program& program, const Bindings& bindings, Cores cores) {
  const std::vector<int64_t> bounds = shares_of(program, cores != Cores::one);
  const auto shares = static_cast<int64_t>(bounds.size()) - 1;
  // All memory first: once a tile has run, an in-place result is half made.
  std::vector<std::unique_ptr<char[]>> scratch;
  std::vector<Worker> workers;
  for (int64_t s = 0; s < shares; ++s) {
    scratch.emplace_back(new char[scratch_bytes(program)]);
    workers.emplace_back(program, bindings, aligned(scratch.back().get()),
                         bounds[s + 1] - bounds[s]);
  }
  const auto run_share = [&](int64_t s) {
    for (int64_t first = bounds[s]; first < bounds[s + 1]; first += program.tile) {
      const int64_t n = std::min(program.tile, bounds[s + 1] - first);
      workers[s].run(first, n, first + 2 * n <= program.numel);
    }
    workers[s].finish();
  };
  std::atomic<int64_t> next_share{0};
  const auto run_shares = [&]() noexcept {
    for (int64_t s; (s = next_share.fetch_add(1)) < shares;) run_share(s);
  };
  if (shares == 1 || cores == Cores::one)
    run_shares();
  else if (cores == Cores::team)
    run::in_team(run_shares);
  else
    run::run_in_parts(static_cast<int>(shares), run::ThreadSettings::of_this_thread(), run_share);
  if (!finish_reductions(program, bindings, workers)) return false;
  write_picked_sums(program, bindings, workers);
  return true;
}

}  // namespace lazyeng::fuse
