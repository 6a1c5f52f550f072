// csrc/run/op_info.cpp: reading a schema.
#include "csrc/run/op_info.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "csrc/run/op_names.h"

namespace lazyeng::run {

using namespace op_names;
using std::string_view;

namespace {

template <size_t N>
bool contains(const std::array<string_view, N>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

template <size_t N>
bool begins_with_one_of(const std::array<string_view, N>& begins, const std::string& name) {
  return std::any_of(begins.begin(), begins.end(),
                     [&](string_view begin) { return name.rfind(begin, 0) == 0; });
}

/// An op that slices.h takes apart. (Not what is given the number of images.)
bool makes_slices(Work work, const c10::FunctionSchema& schema) {
  if (contains(kWholeProducts, schema.name())) return false;
  return work == Work::product || work == Work::convolution ||
         (work == Work::windows && !schema.argumentIndexWithName("input_size"));
}

std::optional<c10::OperatorHandle> find_out_form(const std::string& base) {
  const auto out = c10::Dispatcher::singleton().findSchema({base, "out"});
  return out ? out : c10::Dispatcher::singleton().findSchema({base, "grad_input"});
}

Work work_of(const c10::OperatorHandle& op, const std::string& base) {
  if (contains(kProducts, base) || contains(kWholeProducts, base)) return Work::product;
  if (contains(kRows, base)) return Work::rows;
  if (contains(kConvolutions, base)) return Work::convolution;
  if (contains(kRecurrent, base)) return Work::recurrent;
  if (contains(kWindows, base)) return Work::windows;
  if (contains(kCopies, base)) return Work::copies;
  if (contains(kLookups, base)) return Work::lookups;
  const bool random = op.hasTag(at::Tag::nondeterministic_seeded);
  return op.hasTag(at::Tag::pointwise) && !random ? Work::elements : Work::other;
}

bool is_work(const c10::Argument& result) {
  return result.type()->str() == "__torch__.torch.classes.c10d.Work";
}

Collectivity collectivity_of(const c10::FunctionSchema& schema, const std::string& short_name) {
  const std::string& name = schema.name();
  if (name.rfind("c10d::", 0) == 0)
    return !schema.returns().empty() && is_work(schema.returns().back()) ? Collectivity::work
                                                                         : Collectivity::none;
  const bool functional =
      name.rfind("_c10d_functional::", 0) == 0 && !contains(kPointToPoint, short_name);
  return functional || name == "_dtensor::shard_dim_alltoall" ? Collectivity::functional
                                                              : Collectivity::none;
}

/// The schemas of c10d do not mark what is written: the first argument, if the name ends so.
bool is_written_by_backend(const std::string& name, size_t index) {
  return index == 0 && name.rfind("c10d::", 0) == 0 && name.back() == '_';
}

ArgKind kind_of(const c10::Argument& argument) {
  const c10::TypePtr type = without_optional(argument.real_type());
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return ArgKind::tensor;
    case c10::TypeKind::GeneratorType:
      return ArgKind::generator;
    case c10::TypeKind::DeviceObjType:
      return ArgKind::device;
    case c10::TypeKind::NumberType:
      return ArgKind::scalar;
    case c10::TypeKind::ListType:
      break;
    default:
      return ArgKind::other;
  }
  const c10::TypePtr listed = type->castRaw<c10::ListType>()->getElementType();
  const c10::TypePtr element = without_optional(listed);
  const bool optional = element != listed;
  if (element->kind() == c10::TypeKind::TensorType)
    return optional ? ArgKind::optional_tensor_list : ArgKind::tensor_list;
  if (element->kind() == c10::TypeKind::ListType &&
      element->castRaw<c10::ListType>()->getElementType()->kind() == c10::TypeKind::TensorType)
    return ArgKind::tensor_lists;
  return element->kind() == c10::TypeKind::NumberType ? ArgKind::scalar : ArgKind::other;
}

bool written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

ReturnInfo read_return(const c10::FunctionSchema& schema, size_t index) {
  const c10::Argument& result = schema.returns()[index];
  ReturnInfo info;
  const ArgKind kind = kind_of(result);
  info.tensor =
      kind == ArgKind::tensor || kind == ArgKind::tensor_list || kind == ArgKind::tensor_lists;
  info.list = kind == ArgKind::tensor_list;
  info.number = result.real_type()->kind() == c10::TypeKind::SymIntType &&
                string_view(schema.name()).starts_with("aten::");
  info.optional = result.real_type()->kind() == c10::TypeKind::OptionalType;
  if (result.alias_info() == nullptr) return info;
  info.may_alias = !written(result);
  if (!written(result)) return info;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if (written(argument) &&
        argument.alias_info()->beforeSets() == result.alias_info()->beforeSets())
      info.written_arg = static_cast<int>(i);
  }
  return info;
}

/// Ops over lists, and those with `out=` that copy there what they have made.
bool is_made_of_writes(const c10::OperatorHandle& handle) {
  if (handle.hasKernelForDispatchKey(c10::DispatchKey::CPU)) return false;
  const c10::FunctionSchema& schema = handle.schema();
  return schema.name().starts_with("aten::_foreach_") ||
         std::ranges::any_of(schema.arguments(), &c10::Argument::is_out);
}

bool is_of_integers(const c10::Argument& argument) {
  c10::TypePtr type = without_optional(argument.real_type());
  if (type->kind() == c10::TypeKind::ListType)
    type = without_optional(type->castRaw<c10::ListType>()->getElementType());
  return type->kind() == c10::TypeKind::IntType || type->kind() == c10::TypeKind::SymIntType;
}

}  // namespace

c10::TypePtr without_optional(c10::TypePtr type) {
  if (type->kind() != c10::TypeKind::OptionalType) return type;
  return type->castRaw<c10::OptionalType>()->getElementType();
}

OpInfo::OpInfo(const c10::OperatorHandle& op) : handle(op) {
  read_names();
  read_arguments();
  collective = collectivity_of(op.schema(), short_name);
  read_returns();
  read_work();
  read_tags();
  read_tables();
  read_kernels();
}

void OpInfo::read_names() {
  const c10::OperatorName& full = handle.operator_name();
  base = full.name;
  name = full.overload_name.empty() ? base : base + "." + full.overload_name;
  const size_t colons = base.find("::");
  short_name = base.substr(colons + 2);
  torch_name = name;
  torch_name.replace(colons, 2, ".");
  aten = base.starts_with("aten::");
  torchs = aten || base.starts_with("prims::");
}

void OpInfo::read_arguments() {
  trusts_contents = std::any_of(kVendors.begin(), kVendors.end(), [&](string_view vendor) {
    return short_name.find(vendor) != std::string::npos;
  });
  const bool scalars_are_data =
      contains(kScalarsAreData, base) || base.starts_with("aten::_foreach_");
  const bool reals_are_data = begins_with_one_of(kOptimizers, base);
  const bool bumps = !aten || handle.hasKernelForDispatchKey(c10::DispatchKey::ADInplaceOrView);
  bumps_inside = !bumps && is_made_of_writes(handle);
  for (const c10::Argument& argument : handle.schema().arguments()) {
    ArgInfo info{kind_of(argument), written(argument)};
    const string_view argument_name = argument.name();
    info.silent = !info.write && contains(kUpdatesStatistics, base) &&
                  (argument_name == "running_mean" || argument_name == "running_var");
    info.write |= info.silent;
    info.write |= is_written_by_backend(base, args.size());
    info.silent |= info.write && !bumps && !bumps_inside;
    info.overwritten =
        info.write && (argument.is_out() || contains(kOverwriting, base) ||
                       (!argument.alias_info() && argument_name.starts_with("output")));
    info.counts = is_of_integers(argument);
    info.is_data = (scalars_are_data && info.kind == ArgKind::scalar) ||
                   (reals_are_data && argument.type()->kind() == c10::TypeKind::FloatType);
    // (Whether an optimizer has a momentum; whether addmv of an empty matrix returns its summand.)
    info.zero_decides = info.is_data && (info.kind != ArgKind::scalar || base == "aten::addmv");
    writes |= info.write;
    trusts_contents |= !info.write && contains(kRowNumbers, argument.name());
    takes_generator |= info.kind == ArgKind::generator;
    takes_out |= argument.is_out();
    args.push_back(info);
  }
  dtype_arg = handle.schema().argumentIndexWithName("dtype").value_or(-1);
  dropout_arg = handle.schema().argumentIndexWithName("dropout_p").value_or(-1);
}

void OpInfo::read_returns() {
  const c10::FunctionSchema& schema = handle.schema();
  for (size_t i = 0; i < schema.returns().size(); ++i) {
    if (collective == Collectivity::work && is_work(schema.returns()[i])) continue;
    returns.push_back(read_return(schema, i));
    if (collective == Collectivity::work) returns.back().written_arg = 0;
    returns_plain |= !returns.back().tensor && !returns.back().number;
    reports_info |= schema.returns()[i].name() == "info";
  }
  checks_values = schema.returns().empty() && !writes;
}

void OpInfo::read_work() {
  work = work_of(handle, base);
  fans_out = begins_with_one_of(kFansOut, base);
  if (name == base && makes_slices(work, handle.schema())) out_form = find_out_form(base);
  takes_some_of_first =
      work == Work::lookups || base == "aten::embedding" || base == "aten::index_select";
  looks_up_by_values =
      base == "aten::embedding" || base == "aten::index_select" || base == "aten::take";
  trusts_rows = base == "aten::embedding_dense_backward";
  indexes = base == "aten::index" || base == "aten::_unsafe_index";
}

void OpInfo::read_tags() {
  random = handle.hasTag(at::Tag::nondeterministic_seeded);
  pointwise = handle.hasTag(at::Tag::pointwise);
  reduction = handle.hasTag(at::Tag::reduction);
  moves_metadata = handle.hasTag(at::Tag::inplace_view);
  const bool by_tag =
      handle.hasTag(at::Tag::dynamic_output_shape) || handle.hasTag(at::Tag::data_dependent_output);
  data_dependent = !indexes && (by_tag || contains(kDataDependent, base));
  // (Tensors of other sizes are not equal, whatever they hold; the size of a result may be given.)
  shows_values = by_tag && !indexes && base != "aten::equal" && base != "aten::repeat_interleave";
}

void OpInfo::read_tables() {
  metadata_only = contains(kMetadataOnly, base);
  storage_size_matters = contains(kStorageSize, base);
  const bool views = std::any_of(returns.begin(), returns.end(),
                                 [](const ReturnInfo& result) { return result.may_alias; });
  offset_matters = storage_size_matters || moves_metadata || contains(kOtherElements, base) ||
                   name == "aten::view.dtype" || (views && !aten);
  if (name == "aten::select.int") offset_view = OffsetView::select;
  if (name == "aten::slice.Tensor") offset_view = OffsetView::slice;
  crosses_devices = contains(kCrossesDevices, base);
  wrong_meta = contains(kWrongMeta, base);
  meta_forgets_layout = contains(kMetaForgetsLayout, base);
  looks_at_grad = contains(kLooksAtGrad, base);
  asks_grad_mode = contains(kAsksGradMode, base);
  calls_cast_ops = contains(kCallsCastOps, base);
  other_on_one_core = contains(kOtherOnOneCore, base);
  // (record/special/recurrent.cpp passes the weights as they are.)
  if (base == "aten::_cudnn_rnn") ignored_warning = "RNN module weights are not part of single";
}

void OpInfo::read_kernels() {
  made_of_ops = handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) &&
                !handle.hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
                !handle.hasKernelForDispatchKey(c10::DispatchKey::CUDA);
  looks_once =
      contains(kLooksOnce, base) ||
      (!made_of_ops && (pointwise || reduction || work == Work::elements || work == Work::rows));
  cpp_meta = made_of_ops && contains(kCppMeta, base);
  checks_sizes = aten && (pointwise || reduction || contains(kCheckSizes, base));
  structured_meta =
      aten && !contains(kUnfinishedStructured, base) && !contains(kUnfinishedStructured, name) &&
      handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
}

}  // namespace lazyeng::run
