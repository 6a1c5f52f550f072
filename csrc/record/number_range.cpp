// csrc/record/number_range.cpp: the largest numbers of each dtype.
#include "csrc/record/number_range.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace lazyeng::record {
namespace {

/// Every dtype has these.
constexpr int64_t kSmall = 127;

bool real_fits(double number, double most) {
  return !std::isfinite(number) || std::abs(number) <= most;
}

template <class Integer>
bool fits_integer(const c10::IValue& number) {
  using Limits = std::numeric_limits<Integer>;
  if (number.isInt()) return number.toInt() >= Limits::min() && number.toInt() <= Limits::max();
  // (2^63 is no int64, but what the largest int64 is as a double.)
  return number.isDouble() && number.toDouble() >= static_cast<double>(Limits::min()) &&
         number.toDouble() < static_cast<double>(Limits::max());
}

template <class Float>
bool fits_float(const c10::IValue& number) {
  const auto most = static_cast<double>(std::numeric_limits<Float>::max());
  if (number.isInt()) return real_fits(static_cast<double>(number.toInt()), most);
  return number.isDouble() && real_fits(number.toDouble(), most);
}

bool fits_dtype(const c10::IValue& number, c10::ScalarType dtype) {
  switch (dtype) {
    case c10::kBool:
      return true;
    case c10::kByte:
      return fits_integer<uint8_t>(number);
    case c10::kChar:
      return fits_integer<int8_t>(number);
    case c10::kShort:
      return fits_integer<int16_t>(number);
    case c10::kInt:
      return fits_integer<int32_t>(number);
    case c10::kLong:
      return fits_integer<int64_t>(number);
    case c10::kHalf:
      return fits_float<c10::Half>(number);
    case c10::kBFloat16:
      return fits_float<c10::BFloat16>(number);
    case c10::kFloat:
      return fits_float<float>(number);
    case c10::kDouble:
      return !number.isComplexDouble();
    default:
      return false;
  }
}

bool is_small(const c10::IValue& number) {
  return number.isBool() || (number.isInt() && number.toInt() >= 0 && number.toInt() <= kSmall);
}

}  // namespace

bool number_fits(const Call& call, const c10::IValue& number) {
  if (is_small(number)) return true;
  if (number.isList())
    return std::ranges::all_of(number.toListRef(),
                               [&](const c10::IValue& one) { return number_fits(call, one); });
  if (!number.isScalar()) return true;
  const int dtype = call.info.dtype_arg;
  if (dtype >= 0 && call.args[dtype].isInt() &&
      !fits_dtype(number, static_cast<c10::ScalarType>(call.args[dtype].toInt())))
    return false;
  return std::ranges::all_of(call.looks, [&](const run::GeometryRef& look) {
    return !look || look->data().wrapped_number || fits_dtype(number, look->dtype());
  });
}

bool numbers_fit(const Call& call) {
  for (size_t i = 0; i < call.args.size(); ++i)
    if (call.info.args[i].kind == run::ArgKind::scalar && !number_fits(call, call.args[i]))
      return false;
  return true;
}

}  // namespace lazyeng::record
