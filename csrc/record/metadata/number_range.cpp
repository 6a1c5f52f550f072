// csrc/record/metadata/number_range.cpp: which dtypes decide, and whether they hold a number.
#include "csrc/record/metadata/number_range.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <c10/util/complex.h>
#include <c10/util/overflows.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

namespace lazyeng::record {
namespace {

/// Every dtype has these.
constexpr int64_t kSmall = 127;

/// By torch's own rule, which kernels go by.
template <class T>
bool fits(const c10::IValue& number) {
  if (number.isInt()) return !c10::overflows<T, int64_t>(number.toInt());
  if (number.isComplexDouble())
    return !c10::overflows<T, c10::complex<double>>(number.toComplexDouble());
  return number.isDouble() && !c10::overflows<T, double>(number.toDouble());
}

bool fits_dtype(const c10::IValue& number, c10::ScalarType dtype) {
  switch (dtype) {
    case c10::kBool:
      return true;
    case c10::kByte:
      return fits<uint8_t>(number);
    case c10::kChar:
      return fits<int8_t>(number);
    case c10::kShort:
      return fits<int16_t>(number);
    case c10::kInt:
      return fits<int32_t>(number);
    case c10::kLong:
      return fits<int64_t>(number);
    case c10::kHalf:
      return fits<c10::Half>(number);
    case c10::kBFloat16:
      return fits<c10::BFloat16>(number);
    case c10::kFloat:
      return fits<float>(number);
    case c10::kDouble:
      return fits<double>(number);
    case c10::kUInt16:
      return fits<uint16_t>(number);
    case c10::kUInt32:
      return fits<uint32_t>(number);
    case c10::kUInt64:
      return fits<uint64_t>(number);
    case c10::kComplexHalf:
      return fits<c10::complex<c10::Half>>(number);
    case c10::kComplexFloat:
      return fits<c10::complex<float>>(number);
    case c10::kComplexDouble:
      return fits<c10::complex<double>>(number);
    default:
      return false;
  }
}

bool is_probability(const c10::IValue& number) {
  const double probability = number.toDouble();
  return probability >= 0 && probability <= 1;
}

std::optional<int64_t> integer_named(const Call& call, const char* name) {
  const std::optional<int> arg = call.info.handle.schema().argumentIndexWithName(name);
  if (!arg || !call.args[*arg].isInt()) return std::nullopt;
  return call.args[*arg].toInt();
}

std::optional<double> real_named(const Call& call, const char* name) {
  const std::optional<int> arg = call.info.handle.schema().argumentIndexWithName(name);
  if (!arg || !(call.args[*arg].isDouble() || call.args[*arg].isInt())) return std::nullopt;
  return call.args[*arg].toScalar().toDouble();
}

/// (Integers have bounds of their own.)
bool are_bounds(std::optional<double> low, std::optional<double> high) {
  return !low || !high || (std::isfinite(*low) && std::isfinite(*high) && *low <= *high);
}

/// Of which integers are drawn. (Of randint_like that of its tensor.)
c10::ScalarType drawn_dtype(const Call& call) {
  const int dtype = call.info.dtype_arg;
  if (dtype >= 0 && call.args[dtype].isInt())
    return static_cast<c10::ScalarType>(call.args[dtype].toInt());
  return call.looks.empty() || !call.looks[0] ? c10::kLong : call.looks[0]->dtype();
}

/// (What fits an unsigned dtype by torch's rule may be negative.)
bool is_within(int64_t number, c10::ScalarType dtype) {
  if (dtype == c10::kBool) return number == 0 || number == 1;
  if (c10::isIntegralType(dtype, false) && !c10::isSignedType(dtype) && number < 0) return false;
  return fits_dtype(number, dtype);
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

bool has_reals_for_integers(const Call& call) {
  return std::ranges::any_of(call.args, [](const c10::IValue& arg) { return arg.isDouble(); }) &&
         std::ranges::all_of(call.looks, [](const run::GeometryRef& look) {
           return !look || c10::isIntegralType(look->dtype(), /*includeBool=*/true);
         });
}

bool counts_between_bounds(const Call& call) {
  return call.info.base != "aten::histc" ||
         are_bounds(real_named(call, "min"), real_named(call, "max"));
}

bool can_be_drawn(const Call& call) {
  if (!call.info.random || !call.info.aten) return true;
  const c10::FunctionSchema& schema = call.info.handle.schema();
  for (const char* name : {"p", "dropout_p"})
    if (const std::optional<int> arg = schema.argumentIndexWithName(name))
      if (call.args[*arg].isDouble() && !is_probability(call.args[*arg])) return false;
  if (!are_bounds(real_named(call, "from"), real_named(call, "to"))) return false;
  const std::optional<int64_t> high = integer_named(call, "high");
  if (!high) return true;
  const int64_t low = integer_named(call, "low").value_or(0);
  const c10::ScalarType dtype = drawn_dtype(call);
  return low < *high && is_within(low, dtype) && is_within(*high - 1, dtype);
}

}  // namespace lazyeng::record
