// csrc/fuse/arguments.cpp: positions of the schema, dtypes of arguments.
#include "csrc/fuse/arguments.h"

namespace lazyeng::fuse {

int Arguments::tensor_at(size_t arg) const {
  if (arg >= node().info.args.size() || node().info.args[arg].kind != run::ArgKind::tensor)
    return -1;
  int index = 0;
  for (size_t i = 0; i < arg; ++i) index += node().info.args[i].kind == run::ArgKind::tensor;
  return index;
}

bool Arguments::is_given(size_t arg) const {
  const int index = tensor_at(arg);
  if (index < 0) return arg < node().args.size() && !node().args[arg].isNone();
  return value_of(index) != kNone || node().tensors[static_cast<size_t>(index)].raw.defined();
}

bool Arguments::is_single(size_t arg) const {
  const int index = tensor_at(arg);
  if (index < 0) return true;
  const int16_t value = value_of(index);
  return value == kNone || look_of(value).numel() == 1;
}

c10::ScalarType Arguments::dtype_at(size_t arg) const {
  const int index = tensor_at(arg);
  if (index < 0) throw Unfit();
  const int16_t value = value_of(index);
  if (value != kNone) return look_of(value).dtype();
  const at::Tensor& raw = node().tensors[static_cast<size_t>(index)].raw;
  if (!raw.defined()) throw Unfit();
  return raw.scalar_type();
}

void Arguments::promote(ResultType& type, size_t arg) const {
  const int index = tensor_at(arg);
  if (index < 0) {
    if (!has_number(arg)) throw Unfit();
    return type.add(node().args[arg].toScalar().type(), true, true);
  }
  const int16_t value = value_of(index);
  if (value != kNone) return type.add(look_of(value));
  const at::Tensor& raw = node().tensors[static_cast<size_t>(index)].raw;
  if (!raw.defined() || raw.numel() != 1) throw Unfit();
  type.add(raw.scalar_type(), raw.dim() == 0, raw.unsafeGetTensorImpl()->is_wrapped_number());
}

c10::ScalarType Arguments::common_dtype(std::initializer_list<size_t> args) const {
  ResultType type;
  for (size_t arg : args) promote(type, arg);
  return type.get();
}

c10::ScalarType Arguments::float_dtype(c10::ScalarType common) const {
  if (c10::isFloatingType(common)) return common;
  if (!c10::isFloatingType(result_look().dtype())) throw Unfit();
  return result_look().dtype();
}

}  // namespace lazyeng::fuse
