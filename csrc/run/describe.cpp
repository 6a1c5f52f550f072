// csrc/run/describe.cpp: tensors in words, for messages.
#include <sstream>

#include "csrc/run/node.h"

namespace lazyeng::run {
namespace {

/// torch's Python names of dtypes.
const char* dtype_name(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Byte:
      return "uint8";
    case c10::ScalarType::Char:
      return "int8";
    case c10::ScalarType::Short:
      return "int16";
    case c10::ScalarType::Int:
      return "int32";
    case c10::ScalarType::Long:
      return "int64";
    case c10::ScalarType::Half:
      return "float16";
    case c10::ScalarType::Float:
      return "float32";
    case c10::ScalarType::Double:
      return "float64";
    case c10::ScalarType::ComplexHalf:
      return "complex32";
    case c10::ScalarType::ComplexFloat:
      return "complex64";
    case c10::ScalarType::ComplexDouble:
      return "complex128";
    case c10::ScalarType::Bool:
      return "bool";
    case c10::ScalarType::BFloat16:
      return "bfloat16";
    default:
      return c10::toString(dtype);
  }
}

}  // namespace

std::string describe(const Geometry& g) {
  std::ostringstream out;
  out << dtype_name(g.dtype()) << '[';
  for (size_t i = 0; i < g.sizes().size(); ++i) out << (i ? "," : "") << g.sizes()[i];
  out << "]@" << g.device().str();
  return out.str();
}

std::vector<std::string> describe(std::span<const TensorArg> tensors) {
  std::vector<std::string> inputs;
  for (const TensorArg& arg : tensors)
    if (arg.value)
      inputs.push_back(describe(arg.value->geometry()));
    else if (arg.raw.defined() && arg.raw.layout() == c10::kStrided)
      inputs.push_back(describe(*geometry_of(arg.raw)));
  return inputs;
}

std::vector<std::string> Node::describe_inputs() const { return describe(tensors); }

}  // namespace lazyeng::run
