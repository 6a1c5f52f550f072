// csrc/run/op_info.cpp: reading a schema.
#include "csrc/run/op_info.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace lazyeng::run {
namespace {

using std::string_view;

/// Ops that answer from metadata alone although they return no tensor.
constexpr std::array<string_view, 14> kMetadataOnly = {"aten::_fused_sdp_choice",
                                                       "aten::is_same_size",
                                                       "aten::size",
                                                       "aten::stride",
                                                       "aten::sym_size",
                                                       "aten::sym_stride",
                                                       "aten::sym_numel",
                                                       "aten::sym_storage_offset",
                                                       "aten::numel",
                                                       "aten::_has_compatible_shallow_copy_type",
                                                       "aten::dim",
                                                       "aten::is_contiguous",
                                                       "aten::sym_is_contiguous",
                                                       "aten::_version"};

/// Ops that take any number of their dtypes: their Scalar arguments (step sizes, decay rates) are
/// no part of what decides a plan (record/number_range.h). All other ops may refuse a value, or let
/// it decide a shape (arange).
constexpr std::array<string_view, 37> kScalarsAreData = {
    "aten::add",         "aten::add_",         "aten::sub",       "aten::sub_",
    "aten::rsub",        "aten::mul",          "aten::mul_",      "aten::div",
    "aten::div_",        "aten::addcmul",      "aten::addcmul_",  "aten::addcdiv",
    "aten::addcdiv_",    "aten::lerp",         "aten::lerp_",     "aten::addmm",
    "aten::addmm_",      "aten::addmv",        "aten::baddbmm",   "aten::addbmm",
    "aten::fill",        "aten::fill_",        "aten::full_like", "aten::new_full",
    "aten::masked_fill", "aten::masked_fill_", "aten::clamp",     "aten::clamp_",
    "aten::clamp_min",   "aten::clamp_max",    "aten::eq",        "aten::ne",
    "aten::lt",          "aten::le",           "aten::gt",        "aten::ge",
    "aten::where"};

/// Steps of optimizers, to which the same holds for their numbers of type float.
constexpr std::array<string_view, 3> kOptimizers = {"aten::_fused_adam", "aten::_fused_sgd",
                                                    "aten::_fused_adagrad"};

/// Ops that are checked against the size of the whole storage, change it, or copy all of it to make
/// a result that lies where their argument does.
constexpr std::array<string_view, 11> kStorageSize = {
    "aten::diagonal_scatter", "aten::select_scatter", "aten::slice_scatter",     "aten::as_strided",
    "aten::as_strided_",      "aten::set_",           "aten::resize_",           "aten::resize_as_",
    "aten::_reshape_alias",   "aten::unfold",         "aten::as_strided_scatter"};

/// Views whose elements have another size than those of their argument (and view.dtype).
constexpr std::array<string_view, 2> kOtherElements = {"aten::view_as_real",
                                                       "aten::view_as_complex"};

/// Ops whose effect, or the shape of what they return, only a run shows, and that the tags do not
/// mention.
constexpr std::array<string_view, 5> kDataDependent = {
    "aten::set_", "aten::_nested_tensor_from_mask", "aten::record_stream",
    "aten::_pack_padded_sequence", "aten::_padded_dense_to_jagged_forward"};

/// Ops made of other ops whose meta functions are all C++.
constexpr std::array<string_view, 4> kCppMeta = {"aten::sum", "aten::clone", "aten::_to_copy",
                                                 "aten::_unsafe_view"};

/// Ops that update running statistics which their schema does not mark as written.
constexpr std::array<string_view, 6> kUpdatesStatistics = {
    "aten::native_batch_norm",
    "aten::cudnn_batch_norm",
    "aten::miopen_batch_norm",
    "aten::batch_norm_gather_stats",
    "aten::batch_norm_gather_stats_with_counts",
    "aten::batch_norm_update_stats"};

/// Parts of names of ops that trust the contents of a workspace.
constexpr std::array<string_view, 4> kVendors = {"mkldnn", "cudnn", "miopen", "onednn"};

/// Arguments whose values LAPACK takes for row numbers: torch 2.11 passes them on as they are.
constexpr std::array<string_view, 2> kRowNumbers = {"pivots", "LU_pivots"};

/// Ops whose meta function is known to tell other strides, or other shapes, than the kernel
/// returns, or to take sizes that it refuses. (Others are found out when they are verified.)
constexpr std::array<string_view, 27> kWrongMeta = {"aten::_cudnn_rnn",
                                                    "aten::native_batch_norm",
                                                    "aten::_native_batch_norm_legit",
                                                    "aten::_batch_norm_with_update",
                                                    "aten::_native_batch_norm_legit_functional",
                                                    "aten::_native_batch_norm_legit_no_training",
                                                    "aten::_batch_norm_no_update",
                                                    "aten::_embedding_bag",
                                                    "aten::_embedding_bag_forward_only",
                                                    "aten::nonzero_static",
                                                    "aten::_fft_r2c",
                                                    "aten::_fft_c2r",
                                                    "aten::_fft_c2c",
                                                    "aten::linalg_eig",
                                                    "aten::_linalg_eigvals",
                                                    "aten::_linalg_svd",
                                                    "aten::_linalg_eigh",
                                                    "aten::linalg_lstsq",
                                                    "aten::linalg_qr",
                                                    "aten::geqrf",
                                                    "aten::lu_unpack",
                                                    "aten::_linalg_det",
                                                    "aten::_linalg_slogdet",
                                                    "aten::triangular_solve",
                                                    "aten::_trilinear",
                                                    "aten::mkldnn_rnn_layer",
                                                    "aten::multinomial"};

constexpr std::array<string_view, 4> kMetaForgetsLayout = {
    "aten::reflection_pad2d", "aten::reflection_pad3d", "aten::replication_pad2d",
    "aten::replication_pad3d"};

/// Structured ops, or overloads, whose real result is made by the kernel, not by the structured
/// meta function.
constexpr std::array<string_view, 4> kUnfinishedStructured = {
    "aten::mse_loss", "aten::smooth_l1_loss", "aten::isin.Scalar_Tensor",
    "aten::linalg_lu_solve"};  // (its kernel sets the conjugate bit)

/// In-place ops that do not look at what they replace.
constexpr std::array<string_view, 13> kOverwriting = {
    "aten::copy_",         "aten::zero_",       "aten::fill_",      "aten::normal_",
    "aten::uniform_",      "aten::random_",     "aten::bernoulli_", "aten::exponential_",
    "aten::cauchy_",       "aten::log_normal_", "aten::geometric_", "aten::_foreach_copy_",
    "aten::_foreach_zero_"};

/// Ops whose kernel makes what their derivative needs only if an argument requires grad. (Real
/// tensors do not: without it the derivative reads memory that is not there.)
constexpr std::array<string_view, 1> kLooksAtGrad = {"aten::_sparse_mm_reduce_impl"};

/// Ops whose kernel returns something else, and computes it in another way, where grad mode is off.
constexpr std::array<string_view, 2> kAsksGradMode = {"aten::mkldnn_rnn_layer",
                                                      "aten::_sparse_mm_reduce_impl"};

/// Ops whose kernel calls ops that autocast has a rule for: what it returns depends on whether that
/// is on. (Of the ops in PyTorch's op_db, modules and some sixty calls more, by what torch's
/// profiler sees inside of them. Autocast's rule for the op itself, if there is one, has been
/// applied before.)
constexpr std::array<string_view, 21> kCallsCastOps = {"aten::_chunk_cat",
                                                       "aten::_linalg_det",
                                                       "aten::_linalg_slogdet",
                                                       "aten::_safe_softmax",
                                                       "aten::_sparse_addmm",
                                                       "aten::_to_sparse",
                                                       "aten::_transformer_encoder_layer_fwd",
                                                       "aten::_trilinear",
                                                       "aten::_unsafe_masked_index_put_accumulate",
                                                       "aten::addr_",
                                                       "aten::affine_grid_generator",
                                                       "aten::convolution_backward",
                                                       "aten::isin",
                                                       "aten::linalg_matrix_exp",
                                                       "aten::linalg_pinv",
                                                       "aten::masked_scatter_backward",
                                                       "aten::mvlgamma",
                                                       "aten::repeat",
                                                       "aten::roll",
                                                       "aten::soft_margin_loss_backward",
                                                       "aten::unique_dim"};

/// Ops that torch computes otherwise on one core than on several, seldom enough for a trial to miss
/// it: of 66 rows of 33 elements five differ, all in what no whole vector takes.
constexpr std::array<string_view, 1> kOtherOnOneCore = {"aten::_softmax_backward_data"};

/// Copies whose source and result may lie on different devices.
constexpr std::array<string_view, 2> kCrossesDevices = {"aten::_to_copy", "aten::copy_"};

constexpr std::array<string_view, 4> kProducts = {"aten::mm", "aten::addmm", "aten::bmm",
                                                  "aten::baddbmm"};

constexpr std::array<string_view, 3> kConvolutions = {
    "aten::convolution", "aten::convolution_backward", "aten::mkldnn_convolution"};

/// What goes over windows of images, or moves whole ones, each image or channel by itself. (Not
/// what samples at places that are data: made-up numbers are no places.)
constexpr std::array<string_view, 26> kWindows = {"aten::max_pool2d_with_indices",
                                                  "aten::max_pool2d_with_indices_backward",
                                                  "aten::max_pool3d_with_indices",
                                                  "aten::max_pool3d_with_indices_backward",
                                                  "aten::avg_pool2d",
                                                  "aten::avg_pool2d_backward",
                                                  "aten::avg_pool3d",
                                                  "aten::avg_pool3d_backward",
                                                  "aten::_adaptive_avg_pool2d",
                                                  "aten::_adaptive_avg_pool2d_backward",
                                                  "aten::_adaptive_avg_pool3d",
                                                  "aten::_adaptive_avg_pool3d_backward",
                                                  "aten::adaptive_max_pool2d",
                                                  "aten::adaptive_max_pool2d_backward",
                                                  "aten::upsample_nearest1d",
                                                  "aten::upsample_nearest1d_backward",
                                                  "aten::upsample_nearest2d",
                                                  "aten::upsample_nearest2d_backward",
                                                  "aten::upsample_linear1d",
                                                  "aten::upsample_linear1d_backward",
                                                  "aten::upsample_bilinear2d",
                                                  "aten::upsample_bilinear2d_backward",
                                                  "aten::reflection_pad2d",
                                                  "aten::reflection_pad2d_backward",
                                                  "aten::im2col",
                                                  "aten::col2im"};

/// Ops that do each row, or column, by itself, all in one way. (Sums do so if their results are
/// many; else each thread has its part. width.h tells by trying.)
constexpr std::array<string_view, 20> kRows = {"aten::sum",
                                               "aten::mean",
                                               "aten::amax",
                                               "aten::amin",
                                               "aten::var",
                                               "aten::logsumexp",
                                               "aten::native_layer_norm_backward",
                                               "aten::_softmax",
                                               "aten::_log_softmax",
                                               "aten::_softmax_backward_data",
                                               "aten::_log_softmax_backward_data",
                                               "aten::native_layer_norm",
                                               "aten::native_batch_norm",
                                               "aten::_native_batch_norm_legit",
                                               "aten::_native_batch_norm_legit_no_training",
                                               "aten::native_batch_norm_backward",
                                               "aten::native_group_norm",
                                               "aten::native_group_norm_backward",
                                               "aten::nll_loss_backward",
                                               "aten::_fused_rms_norm"};

/// Begins of the names of ops whose kernels start helpers however small their tensors are: those of
/// oneDNN, and what shares out channels or images instead of elements.
constexpr std::array<string_view, 13> kFansOut = {"aten::gelu",
                                                  "aten::native_layer_norm",
                                                  "aten::native_group_norm",
                                                  "aten::convolution",
                                                  "aten::mkldnn_",
                                                  "aten::_scaled_dot_product_",
                                                  "aten::max_pool",
                                                  "aten::avg_pool",
                                                  "aten::_adaptive_avg_pool",
                                                  "aten::adaptive_max_pool",
                                                  "aten::upsample_",
                                                  "aten::native_batch_norm",
                                                  "aten::_embedding_bag"};

/// They move elements, or set them.
constexpr std::array<string_view, 10> kCopies = {
    "aten::copy_",        "aten::clone",     "aten::fill_", "aten::zero_", "aten::cat",
    "aten::index_select", "aten::embedding", "aten::stack", "aten::flip",  "aten::constant_pad_nd"};
constexpr std::array<string_view, 3> kLookups = {"aten::index", "aten::_unsafe_index",
                                                 "aten::gather"};

/// Ops that go over their arguments once, and that no tag tells of.
constexpr std::array<string_view, 9> kLooksOnce = {"aten::mse_loss",
                                                   "aten::smooth_l1_loss",
                                                   "aten::huber_loss",
                                                   "aten::roll",
                                                   "aten::flip",
                                                   "aten::binary_cross_entropy_with_logits",
                                                   "aten::native_dropout",
                                                   "aten::native_group_norm",
                                                   "aten::mean"};

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
  return work == Work::product || work == Work::convolution ||
         (work == Work::windows && !schema.argumentIndexWithName("input_size"));
}

std::optional<c10::OperatorHandle> find_out_form(const std::string& base) {
  const auto out = c10::Dispatcher::singleton().findSchema({base, "out"});
  return out ? out : c10::Dispatcher::singleton().findSchema({base, "grad_input"});
}

Work work_of(const c10::OperatorHandle& op, const std::string& base) {
  if (contains(kProducts, base)) return Work::product;
  if (contains(kRows, base)) return Work::rows;
  if (contains(kConvolutions, base)) return Work::convolution;
  if (contains(kWindows, base)) return Work::windows;
  if (contains(kCopies, base)) return Work::copies;
  if (contains(kLookups, base)) return Work::lookups;
  const bool random = op.hasTag(at::Tag::nondeterministic_seeded);
  return op.hasTag(at::Tag::pointwise) && !random ? Work::elements : Work::other;
}

/// Functional collectives that write an argument which their schema does not mark.
constexpr std::array<string_view, 3> kPointToPoint = {"isend", "irecv", "batch_p2p_ops"};

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
  c10::TypePtr type = argument.real_type();
  if (type->kind() == c10::TypeKind::OptionalType)
    type = type->castRaw<c10::OptionalType>()->getElementType();
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
  c10::TypePtr element = type->castRaw<c10::ListType>()->getElementType();
  const bool optional = element->kind() == c10::TypeKind::OptionalType;
  if (optional) element = element->castRaw<c10::OptionalType>()->getElementType();
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

}  // namespace

OpInfo::OpInfo(const c10::OperatorHandle& op) : handle(op) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string base = op.operator_name().name;
  name = op.operator_name().overload_name.empty() ? base
                                                  : base + "." + op.operator_name().overload_name;
  const size_t colons = base.find("::");
  short_name = base.substr(colons + 2);
  torch_name = name;
  torch_name.replace(colons, 2, ".");
  aten = base.rfind("aten::", 0) == 0;
  torchs = aten || base.rfind("prims::", 0) == 0;
  trusts_contents = std::any_of(kVendors.begin(), kVendors.end(), [&](string_view vendor) {
    return short_name.find(vendor) != std::string::npos;
  });
  for (const c10::Argument& argument : schema.arguments()) {
    ArgInfo info{kind_of(argument), written(argument)};
    const string_view argument_name = argument.name();
    info.write |= contains(kUpdatesStatistics, base) &&
                  (argument_name == "running_mean" || argument_name == "running_var");
    info.write |= is_written_by_backend(base, args.size());
    info.overwritten =
        info.write && (argument.is_out() || contains(kOverwriting, base) ||
                       (!argument.alias_info() && argument_name.rfind("output", 0) == 0));
    writes |= info.write;
    trusts_contents |= !info.write && contains(kRowNumbers, argument.name());
    takes_generator |= info.kind == ArgKind::generator;
    args.push_back(info);
  }
  collective = collectivity_of(schema, short_name);
  for (size_t i = 0; i < schema.returns().size(); ++i) {
    if (collective == Collectivity::work && is_work(schema.returns()[i])) continue;
    returns.push_back(read_return(schema, i));
    if (collective == Collectivity::work) returns.back().written_arg = 0;
    returns_plain |= !returns.back().tensor && !returns.back().number;
    reports_info |= schema.returns()[i].name() == "info";
  }
  random = op.hasTag(at::Tag::nondeterministic_seeded);
  work = work_of(op, base);
  fans_out = begins_with_one_of(kFansOut, base);
  if (name == base && makes_slices(work, schema)) out_form = find_out_form(base);
  takes_some_of_first =
      work == Work::lookups || base == "aten::embedding" || base == "aten::index_select";
  indexes = base == "aten::index" || base == "aten::_unsafe_index";
  const bool by_tag =
      op.hasTag(at::Tag::dynamic_output_shape) || op.hasTag(at::Tag::data_dependent_output);
  data_dependent = !indexes && (by_tag || contains(kDataDependent, base));
  // (Tensors of other sizes are not equal, whatever they hold; the size of a result may be given.)
  shows_values = by_tag && !indexes && base != "aten::equal" && base != "aten::repeat_interleave";
  moves_metadata = op.hasTag(at::Tag::inplace_view);
  metadata_only = contains(kMetadataOnly, base);
  dtype_arg = schema.argumentIndexWithName("dtype").value_or(-1);
  const bool scalars_are_data =
      contains(kScalarsAreData, base) || base.starts_with("aten::_foreach_");
  const bool reals_are_data = begins_with_one_of(kOptimizers, base);
  for (size_t i = 0; i < args.size(); ++i)
    args[i].is_data =
        (scalars_are_data && args[i].kind == ArgKind::scalar) ||
        (reals_are_data && schema.arguments()[i].type()->kind() == c10::TypeKind::FloatType);
  storage_size_matters = contains(kStorageSize, base);
  const bool views = std::any_of(returns.begin(), returns.end(),
                                 [](const ReturnInfo& result) { return result.may_alias; });
  offset_matters = storage_size_matters || moves_metadata || contains(kOtherElements, base) ||
                   name == "aten::view.dtype" || (views && !aten);
  if (name == "aten::select.int") offset_view = OffsetView::select;
  if (name == "aten::slice.Tensor") offset_view = OffsetView::slice;
  crosses_devices = contains(kCrossesDevices, base);
  checks_values = schema.returns().empty() && !writes;
  wrong_meta = contains(kWrongMeta, base);
  meta_forgets_layout = contains(kMetaForgetsLayout, base);
  looks_at_grad = contains(kLooksAtGrad, base);
  asks_grad_mode = contains(kAsksGradMode, base);
  calls_cast_ops = contains(kCallsCastOps, base);
  other_on_one_core = contains(kOtherOnOneCore, base);
  // (record/recurrent.cpp passes the weights as they are.)
  if (base == "aten::_cudnn_rnn") ignored_warning = "RNN module weights are not part of single";
  made_of_ops = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) &&
                !op.hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
                !op.hasKernelForDispatchKey(c10::DispatchKey::CUDA);
  pointwise = op.hasTag(at::Tag::pointwise);
  reduction = op.hasTag(at::Tag::reduction);
  looks_once =
      contains(kLooksOnce, base) ||
      (!made_of_ops && (pointwise || reduction || work == Work::elements || work == Work::rows));
  cpp_meta = made_of_ops && contains(kCppMeta, base);
  structured_meta =
      aten && !contains(kUnfinishedStructured, base) && !contains(kUnfinishedStructured, name) &&
      op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
}

}  // namespace lazyeng::run
