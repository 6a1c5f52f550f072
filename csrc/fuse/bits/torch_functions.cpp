// csrc/fuse/bits/torch_functions.cpp: vector functions of MKL as kernels of tile programs.
#include "csrc/fuse/bits/torch_functions.h"

#include <dlfcn.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <type_traits>
#include <utility>

namespace lazyeng::fuse {
namespace {

struct Name {
  Opcode opcode;
  const char* mkl;
};
// Those that ATen/cpu/vml.h takes from MKL.
constexpr Name kNames[] = {
    {Opcode::sqrt, "Sqrt"}, {Opcode::exp, "Exp"},     {Opcode::log, "Ln"},
    {Opcode::log2, "Log2"}, {Opcode::log10, "Log10"}, {Opcode::sin, "Sin"},
    {Opcode::cos, "Cos"},   {Opcode::tan, "Tan"},     {Opcode::tanh, "Tanh"},
    {Opcode::erf, "Erf"},   {Opcode::erfc, "Erfc"},   {Opcode::acos, "Acos"},
    {Opcode::asin, "Asin"}, {Opcode::atan, "Atan"},   {Opcode::erfinv, "ErfInv"},
};

/// VML_HA | VML_FTZDAZ_OFF | VML_ERRMODE_IGNORE, as there.
constexpr int64_t kMode = 0x2 | 0x140000 | 0x100;
/// Of more at a time MKL might make a team of threads.
constexpr int64_t kPiece = 1024;

template <class T>
using VectorFunction = void (*)(int n, const T* in, T* out, int64_t mode);

template <class T, size_t index>
VectorFunction<T> function() {
  static const auto found = reinterpret_cast<VectorFunction<T>>(
      dlsym(RTLD_DEFAULT,
            (std::string(std::is_same_v<T, float> ? "vms" : "vmd") + kNames[index].mkl).c_str()));
  return found;
}

template <class T, size_t index>
void run(const KernelArgs& args) {
  T* const out = reinterpret_cast<T*>(args.out);
  const T* const in = reinterpret_cast<const T*>(args.in[0]);
  if (args.step[0] == 0) {
    T made;
    function<T, index>()(1, in, &made, kMode);
    std::fill_n(out, args.n, made);
    return;
  }
  for (int64_t i = 0; i < args.n; i += kPiece)
    function<T, index>()(static_cast<int>(std::min(kPiece, args.n - i)), in + i, out + i, kMode);
}

template <class T>
Kernel find(Opcode opcode) {
  return [opcode]<size_t... index>(std::index_sequence<index...>) {
    Kernel found = nullptr;
    ((kNames[index].opcode == opcode && function<T, index>() ? void(found = run<T, index>)
                                                             : void()),
     ...);
    return found;
  }(std::make_index_sequence<std::size(kNames)>());
}

}  // namespace

Kernel torch_function(Opcode opcode, Type type) {
  if (type == Type::f32) return find<float>(opcode);
  return type == Type::f64 ? find<double>(opcode) : nullptr;
}

void prepare_torch_functions() {
  const float one = 1;
  float made;
  if (const auto any = function<float, 0>()) any(1, &one, &made, kMode);
}

}  // namespace lazyeng::fuse
