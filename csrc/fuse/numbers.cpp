// csrc/fuse/numbers.cpp: reading numbers.
#include "csrc/fuse/numbers.h"

#include <cstring>

namespace lazyeng::fuse {

c10::Scalar number_at(const char* memory, c10::ScalarType dtype) {
  const auto read = [memory]<class T>(T value) {
    std::memcpy(&value, memory, sizeof value);
    return value;
  };
  switch (dtype) {
    case c10::kBool:  // (a view of other bytes may hold any)
      return read(uint8_t{}) != 0;
    case c10::kByte:
      return read(uint8_t{});
    case c10::kChar:
      return read(int8_t{});
    case c10::kShort:
      return read(int16_t{});
    case c10::kInt:
      return read(int32_t{});
    case c10::kLong:
      return read(int64_t{});
    case c10::kFloat:
      return read(float{});
    case c10::kHalf:
      return static_cast<float>(read(c10::Half()));
    case c10::kBFloat16:
      return static_cast<float>(read(c10::BFloat16()));
    default:
      return read(double{});
  }
}

c10::Scalar number_of(const Group& group, const ParameterSource& source) {
  const run::Node& node = *group.members[source.member].node;
  if (source.kind == ParameterSource::Kind::constant) return source.constant;
  if (source.kind == ParameterSource::Kind::argument) {
    const c10::Scalar number = node.args[source.index].toScalar();
    return source.inverse ? c10::Scalar(1 / number.toDouble()) : number;
  }
  const at::Tensor& raw = node.tensors[source.index].raw;
  return number_at(static_cast<const char*>(raw.const_data_ptr()), raw.scalar_type());
}

}  // namespace lazyeng::fuse
