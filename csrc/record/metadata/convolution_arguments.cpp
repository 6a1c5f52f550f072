// csrc/record/metadata/convolution_arguments.cpp: the checks that ATen/native/Convolution.cpp makes
// first, of aten::convolution.
#include "csrc/record/metadata/convolution_arguments.h"

#include <algorithm>

namespace lazyeng::record {
namespace {

using Numbers = std::vector<int64_t>;

/// The arguments of aten::convolution, by their places in its schema.
class Convolution {
 public:
  explicit Convolution(const Call& call) : call_(call) {}

  bool may_be_refused() const {
    const Numbers stride = numbers(3), padding = numbers(4), dilation = numbers(5);
    return !has_sizes() || has_several_dtypes() || !are_of_dims(stride) || !are_of_dims(padding) ||
           !are_of_dims(dilation) || !are_of_dims(output_padding()) || any_below(stride, 1) ||
           any_below(padding, 0) || any_below(dilation, 1) || any_below(output_padding(), 0) ||
           groups() < 1 || weight(0) < groups() || weight(0) % groups() != 0 || !channels_fit() ||
           !bias_fits() || (transposed() && pads_too_much(stride, dilation));
  }

 private:
  Numbers numbers(size_t arg) const {
    return call_.args[arg].isIntList() ? call_.args[arg].toIntVector() : Numbers{-1};
  }
  Numbers output_padding() const { return numbers(7); }
  bool transposed() const { return call_.args[6].isBool() && call_.args[6].toBool(); }
  int64_t groups() const { return call_.args[8].isInt() ? call_.args[8].toInt() : 0; }
  int64_t weight(size_t dim) const { return call_.looks[1]->sizes()[dim]; }

  bool has_sizes() const {
    return call_.looks[0] && call_.looks[1] && call_.looks[0]->sizes().size() >= 3 &&
           call_.looks[0]->sizes().size() == call_.looks[1]->sizes().size();
  }

  bool has_several_dtypes() const {
    const auto differs = [&](const run::GeometryRef& look) {
      return look && look->dtype() != call_.looks[0]->dtype();
    };
    return std::any_of(call_.looks.begin(), call_.looks.end(), differs);
  }

  /// Lists of one number are of all dims.
  bool are_of_dims(const Numbers& numbers) const {
    return numbers.size() == 1 || numbers.size() + 2 == call_.looks[0]->sizes().size();
  }

  static bool any_below(const Numbers& numbers, int64_t least) {
    return std::ranges::any_of(numbers, [&](int64_t number) { return number < least; });
  }

  bool channels_fit() const {
    const int64_t channels = call_.looks[0]->sizes()[1];
    return channels == (transposed() ? weight(0) : weight(1) * groups());
  }

  bool bias_fits() const {
    const run::GeometryRef& bias = call_.looks[2];
    return !bias || (bias->sizes().size() == 1 &&
                     bias->sizes()[0] == (transposed() ? weight(1) * groups() : weight(0)));
  }

  bool pads_too_much(const Numbers& stride, const Numbers& dilation) const {
    const Numbers padding = output_padding();
    const auto of = [](const Numbers& list, size_t dim) {
      return list.empty() ? 0 : list[list.size() == 1 ? 0 : std::min(dim, list.size() - 1)];
    };
    for (size_t dim = 0; dim < padding.size(); ++dim)
      if (padding[dim] >= std::max(of(stride, dim), of(dilation, dim))) return true;
    return false;
  }

  const Call& call_;
};

}  // namespace

bool convolution_may_be_refused(const Call& call) {
  return call.info.name == "aten::convolution" && Convolution(call).may_be_refused();
}

}  // namespace lazyeng::record
