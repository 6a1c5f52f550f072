// csrc/fuse/tile_interpreter.cpp: running a program: tile after tile, on one thread or on all.
#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>

#include "csrc/fuse/tile_program.h"

namespace lazyeng::fuse {
namespace {

constexpr size_t kCacheLine = 64;

/// Walks `n` elements of a strided tensor from element `first` of the iteration on, in runs along
/// the innermost dim: run(memory, stride in bytes, elements).
template <class Run>
void for_runs(const Program& program, const TensorAccess& tensor, char* base, int64_t first,
              int64_t n, const Run& run) {
  const size_t item = size_of(tensor.type);
  const int inner = static_cast<int>(program.shape.size()) - 1;
  Dims at(program.shape.size());
  int64_t offset = 0;
  for (int d = inner; d >= 0; --d) {
    at[d] = first % program.shape[d];
    first /= program.shape[d];
    offset += at[d] * tensor.strides[d];
  }
  while (n > 0) {
    const int64_t length = std::min(n, program.shape[inner] - at[inner]);
    run(base + offset * static_cast<int64_t>(item),
        tensor.strides[inner] * static_cast<int64_t>(item), length);
    n -= length;
    at[inner] += length;
    offset += length * tensor.strides[inner];
    for (int d = inner; d > 0 && at[d] == program.shape[d]; --d) {
      offset += tensor.strides[d - 1] - at[d] * tensor.strides[d];
      at[d] = 0;
      ++at[d - 1];
    }
  }
}

template <class T>
void copy_strided(char* to, int64_t to_stride, const char* from, int64_t from_stride, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    std::memcpy(to + i * to_stride, from + i * from_stride, sizeof(T));
}

void copy_run(size_t item, char* to, int64_t to_stride, const char* from, int64_t from_stride,
              int64_t n) {
  const auto width = static_cast<int64_t>(item);
  if (to_stride == width && from_stride == width)
    std::memcpy(to, from, static_cast<size_t>(n * width));
  else if (item == 1)
    copy_strided<uint8_t>(to, to_stride, from, from_stride, n);
  else if (item == 2)
    copy_strided<uint16_t>(to, to_stride, from, from_stride, n);
  else if (item == 4)
    copy_strided<uint32_t>(to, to_stride, from, from_stride, n);
  else
    copy_strided<uint64_t>(to, to_stride, from, from_stride, n);
}

/// One thread's registers, and the tiles that it runs.
class Worker {
 public:
  Worker(const Program& program, const Bindings& bindings, char* scratch)
      : program_(program), bindings_(bindings), place_(program.registers.size()) {
    for (const Reduction& reduction : program.reductions)
      totals_.push_back(empty_total(reduction.fold));
    const size_t slot = static_cast<size_t>(program.tile) * program.slot_item;
    for (size_t r = 0; r < place_.size(); ++r) {
      const Register& reg = program.registers[r];
      if (reg.kind == Register::Kind::scratch) place_[r] = scratch + reg.index * slot;
      if (reg.kind == Register::Kind::parameter)
        place_[r] = bindings.splats + reg.index * kSplatBytes;
    }
  }

  void run(int64_t first, int64_t n) {
    for (size_t r = 0; r < place_.size(); ++r) {
      const Register& reg = program_.registers[r];
      if (reg.kind == Register::Kind::tensor)
        place_[r] = bindings_.tensors[reg.index] + first * static_cast<int64_t>(size_of(reg.type));
    }
    for (const Move& move : program_.gathers) gather(move, first, n);
    KernelArgs args{};
    args.n = n;
    for (const Step& step : program_.steps) {
      args.out = place_[step.out];
      for (int k = 0; k < step.inputs; ++k) {
        args.in[k] = place_[step.in[k]];
        args.step[k] = program_.registers[step.in[k]].kind != Register::Kind::parameter;
      }
      step.kernel(args);
    }
    for (const Move& move : program_.scatters) scatter(move, first, n);
    for (size_t r = 0; r < totals_.size(); ++r)
      program_.reductions[r].kernel(place_[program_.reductions[r].reg], n, totals_[r]);
  }

  const std::vector<Total>& totals() const { return totals_; }

 private:
  void gather(const Move& move, int64_t first, int64_t n) {
    const TensorAccess& tensor = program_.tensors[move.tensor];
    const size_t item = size_of(tensor.type);
    char* to = place_[move.reg];
    for_runs(program_, tensor, bindings_.tensors[move.tensor], first, n,
             [&](const char* from, int64_t stride, int64_t length) {
               copy_run(item, to, static_cast<int64_t>(item), from, stride, length);
               to += length * static_cast<int64_t>(item);
             });
  }

  void scatter(const Move& move, int64_t first, int64_t n) {
    const TensorAccess& tensor = program_.tensors[move.tensor];
    const size_t item = size_of(tensor.type);
    const char* from = place_[move.reg];
    for_runs(program_, tensor, bindings_.tensors[move.tensor], first, n,
             [&](char* to, int64_t stride, int64_t length) {
               copy_run(item, to, stride, from, static_cast<int64_t>(item), length);
               from += length * static_cast<int64_t>(item);
             });
  }

  const Program& program_;
  const Bindings& bindings_;
  std::vector<char*> place_;
  std::vector<Total> totals_;
};

bool is_real(Type type) { return type >= Type::f32; }

void add_total(Fold fold, bool real, const Total& part, Total& total) {
  const auto both = [fold](auto a, auto b) {
    if (fold == Fold::sum) return a + b;
    return b != b || (fold == Fold::maximum ? b > a : b < a) ? b : a;
  };
  if (real)
    total.real = both(total.real, part.real);
  else
    total.integer = both(total.integer, part.integer);
}

template <class T>
void put(char* memory, T value) {
  std::memcpy(memory, &value, sizeof value);
}

void write_total(char* memory, Type type, const Total& total, double divisor) {
  const double real = total.real / divisor;
  switch (type) {
    case Type::f64:
      return put(memory, real);
    case Type::f32:
      return put(memory, static_cast<float>(real));
    case Type::f16:
      return put(memory, c10::Half(static_cast<float>(real)));
    case Type::bf16:
      return put(memory, c10::BFloat16(static_cast<float>(real)));
    default:  // little end first: the low bytes are the narrower integer
      std::memcpy(memory, &total.integer, size_of(type));
  }
}

void finish_reductions(const Program& program, const Bindings& bindings,
                       const std::vector<Worker>& workers) {
  for (size_t r = 0; r < program.reductions.size(); ++r) {
    const Reduction& reduction = program.reductions[r];
    const bool real = is_real(program.registers[reduction.reg].type);
    Total total = empty_total(reduction.fold);
    for (const Worker& worker : workers) add_total(reduction.fold, real, worker.totals()[r], total);
    write_total(bindings.tensors[reduction.tensor], program.tensors[reduction.tensor].type, total,
                reduction.divisor);
  }
}

size_t scratch_bytes(const Program& program) {
  const size_t slot = static_cast<size_t>(program.tile) * program.slot_item;
  return program.scratch_slots * slot + kCacheLine;
}

char* aligned(char* memory) {
  const auto address = reinterpret_cast<uintptr_t>(memory);
  return memory + (kCacheLine - address % kCacheLine) % kCacheLine;
}

}  // namespace

void run_program(const Program& program, const Bindings& bindings, bool wide) {
  const int64_t tiles = (program.numel + program.tile - 1) / program.tile;
  const int64_t threads = wide ? std::min<int64_t>(tiles, at::get_num_threads()) : 1;
  // All memory first: once a tile has run, an in-place result is half made.
  std::vector<std::unique_ptr<char[]>> scratch;
  std::vector<Worker> workers;
  for (int64_t t = 0; t < threads; ++t) {
    scratch.emplace_back(new char[scratch_bytes(program)]);
    workers.emplace_back(program, bindings, aligned(scratch.back().get()));
  }
  const auto run_share = [&](int64_t t) {
    for (int64_t tile = tiles * t / threads; tile < tiles * (t + 1) / threads; ++tile) {
      const int64_t first = tile * program.tile;
      workers[t].run(first, std::min(program.tile, program.numel - first));
    }
  };
  if (threads == 1)
    run_share(0);
  else
    at::parallel_for(0, threads, 1, [&](int64_t from, int64_t to) {
      for (int64_t t = from; t < to; ++t) run_share(t);
    });
  finish_reductions(program, bindings, workers);
}

Total empty_total(Fold fold) {
  using Real = std::numeric_limits<double>;
  using Integer = std::numeric_limits<int64_t>;
  switch (fold) {
    case Fold::maximum:
      return {-Real::infinity(), Integer::min()};
    case Fold::minimum:
      return {Real::infinity(), Integer::max()};
    default:
      return {0, 0};
  }
}

}  // namespace lazyeng::fuse
