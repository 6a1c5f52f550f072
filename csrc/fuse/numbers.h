// csrc/fuse/numbers.h: the numbers that a program takes, as they stand in its registers.
#pragma once

#include <c10/core/Scalar.h>
#include <c10/util/TypeCast.h>

#include <cmath>

#include "csrc/fuse/plan.h"

namespace lazyeng::fuse {

/// The element of the dtype at that place in the host's memory.
c10::Scalar number_at(const char* memory, c10::ScalarType dtype);

/// What a parameter that is no tensor of the program's run stands for: a constant, an argument, or
/// a Python number.
c10::Scalar number_of(const Group& group, const ParameterSource& source);

/// Whether the op treats the number specially: it must not come to a program.
inline bool is_special(const c10::Scalar& number, const ParameterSource& source) {
  return source.no_nan && number.isFloatingPoint() && std::isnan(number.toDouble());
}

/// As torch casts a tensor of one element: wraps around.
template <class T>
T cast_number(const c10::Scalar& number) {
  if (number.isFloatingPoint()) return c10::convert<T>(number.toDouble());
  if (number.isBoolean()) return c10::convert<T>(number.toBool());
  return c10::convert<T>(number.toLong());
}

/// Calls f with the number converted to the dtype `source.as`, in the type of its register. As ops
/// convert a Scalar, what does not fit throws, if it is an argument or taken as one.
template <class F>
void with_converted(const c10::Scalar& given, const ParameterSource& source, F f) {
  const bool argument = source.kind == ParameterSource::Kind::argument;
  // (Before it is converted: an integer 0 has no sign.)
  const c10::Scalar number = source.negate ? -given : given;
  const auto convert = [&]<class T>(T) {
    T value = argument || source.item ? number.to<T>() : cast_number<T>(number);
    if (argument && source.constant != 0)
      value = static_cast<T>(value + static_cast<T>(source.constant));
    if constexpr (std::is_same_v<T, c10::Half> || std::is_same_v<T, c10::BFloat16>)
      f(static_cast<float>(value));
    else
      f(value);
  };
  switch (source.as) {
    case c10::kBool:
      return f(static_cast<uint8_t>(cast_number<bool>(number)));
    case c10::kByte:
      return convert(uint8_t{});
    case c10::kChar:
      return convert(int8_t{});
    case c10::kShort:
      return convert(int16_t{});
    case c10::kInt:
      return convert(int32_t{});
    case c10::kLong:
      return convert(int64_t{});
    case c10::kFloat:
      return convert(float{});
    case c10::kHalf:
      return convert(c10::Half());
    case c10::kBFloat16:
      return convert(c10::BFloat16());
    default:
      return convert(double{});
  }
}

}  // namespace lazyeng::fuse
