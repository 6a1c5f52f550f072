// csrc/run/op_names.h: ops by name, where schemas and tags do not tell. For op_info.cpp.
#pragma once

#include <array>
#include <string_view>

namespace lazyeng::run::op_names {

/// Ops that answer from metadata alone although they return no tensor.
inline constexpr std::array<std::string_view, 14> kMetadataOnly = {
    "aten::_fused_sdp_choice",
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
/// no part of what decides a plan (record/metadata/number_range.h). All other ops may refuse a
/// value, or let it decide a shape (arange).
inline constexpr std::array<std::string_view, 37> kScalarsAreData = {
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
inline constexpr std::array<std::string_view, 3> kOptimizers = {
    "aten::_fused_adam", "aten::_fused_sgd", "aten::_fused_adagrad"};

/// Ops that are checked against the size of the whole storage, change it, or copy all of it to make
/// a result that lies where their argument does.
inline constexpr std::array<std::string_view, 12> kStorageSize = {
    "aten::diagonal_scatter",
    "aten::select_scatter",
    "aten::slice_scatter",
    "aten::as_strided",
    "aten::as_strided_",
    "aten::set_",
    "aten::resize_",
    "aten::resize_as_",
    "aten::_reshape_alias",
    "aten::unfold",
    "aten::as_strided_scatter",
    "aten::_new_zeros_with_same_feature_meta"};

/// Views whose elements have another size than those of their argument (and view.dtype).
inline constexpr std::array<std::string_view, 2> kOtherElements = {"aten::view_as_real",
                                                                   "aten::view_as_complex"};

/// Ops whose effect, or the shape of what they return, only a run shows, and that the tags do not
/// mention.
inline constexpr std::array<std::string_view, 5> kDataDependent = {
    "aten::set_", "aten::_nested_tensor_from_mask", "aten::record_stream",
    "aten::_pack_padded_sequence", "aten::_padded_dense_to_jagged_forward"};

/// Ops made of other ops whose meta functions are all C++.
inline constexpr std::array<std::string_view, 4> kCppMeta = {
    "aten::sum", "aten::clone", "aten::_to_copy", "aten::_unsafe_view"};

/// Ops that update running statistics which their schema does not mark as written.
inline constexpr std::array<std::string_view, 6> kUpdatesStatistics = {
    "aten::native_batch_norm",
    "aten::cudnn_batch_norm",
    "aten::miopen_batch_norm",
    "aten::batch_norm_gather_stats",
    "aten::batch_norm_gather_stats_with_counts",
    "aten::batch_norm_update_stats"};

/// Parts of names of ops that trust the contents of a workspace.
inline constexpr std::array<std::string_view, 4> kVendors = {"mkldnn", "cudnn", "miopen", "onednn"};

/// Arguments whose values LAPACK takes for row numbers: torch 2.11 passes them on as they are.
inline constexpr std::array<std::string_view, 2> kRowNumbers = {"pivots", "LU_pivots"};

/// Ops whose meta function is known to tell other strides, or other shapes, than the kernel
/// returns, or to take sizes that it refuses. (Others are found out when they are verified.)
inline constexpr std::array<std::string_view, 32> kWrongMeta = {
    "aten::_cudnn_rnn",
    "aten::_native_multi_head_attention",  // (without weights it returns nothing in their place)
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
    "aten::multinomial",
    "aten::fractional_max_pool2d",
    "aten::fractional_max_pool3d",
    "mkldnn::_convolution_pointwise",
    "quantized::embedding_bag_byte_prepack",
};

inline constexpr std::array<std::string_view, 5> kMetaForgetsLayout = {
    "aten::reflection_pad2d", "aten::reflection_pad3d", "aten::reflection_pad3d_backward",
    "aten::replication_pad2d", "aten::replication_pad3d"};

/// Structured ops, or overloads, whose real result is made by the kernel, not by the structured
/// meta function, or whose sizes are checked by the kernel alone.
inline constexpr std::array<std::string_view, 6> kUnfinishedStructured = {
    "aten::mse_loss",
    "aten::smooth_l1_loss",
    "aten::isin.Scalar_Tensor",
    "aten::linalg_lu_solve",  // (its kernel sets the conjugate bit)
    "aten::fractional_max_pool2d",
    "aten::fractional_max_pool3d"};

/// In-place ops that do not look at what they replace.
inline constexpr std::array<std::string_view, 13> kOverwriting = {
    "aten::copy_",         "aten::zero_",       "aten::fill_",      "aten::normal_",
    "aten::uniform_",      "aten::random_",     "aten::bernoulli_", "aten::exponential_",
    "aten::cauchy_",       "aten::log_normal_", "aten::geometric_", "aten::_foreach_copy_",
    "aten::_foreach_zero_"};

/// Ops whose kernel makes what their derivative needs only if an argument requires grad. (Real
/// tensors do not: without it the derivative reads memory that is not there.)
inline constexpr std::array<std::string_view, 1> kLooksAtGrad = {"aten::_sparse_mm_reduce_impl"};

/// Ops whose kernel returns something else, and computes it in another way, where grad mode is off.
inline constexpr std::array<std::string_view, 2> kAsksGradMode = {"aten::mkldnn_rnn_layer",
                                                                  "aten::_sparse_mm_reduce_impl"};

/// Ops whose kernel calls ops that autocast has a rule for: what it returns depends on whether that
/// is on. (Of the ops in PyTorch's op_db, modules and some sixty calls more, by what torch's
/// profiler sees inside of them. Autocast's rule for the op itself, if there is one, has been
/// applied before.)
inline constexpr std::array<std::string_view, 21> kCallsCastOps = {
    "aten::_chunk_cat",
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
inline constexpr std::array<std::string_view, 1> kOtherOnOneCore = {"aten::_softmax_backward_data"};

/// Ops whose kernels check that the sizes of their arguments fit each other, and whose results have
/// sizes of these: beside pointwise ops and reductions. (Others trust them: shrunken arguments
/// would be read, or written, beyond their ends.)
inline constexpr std::array<std::string_view, 52> kCheckSizes = {
    "aten::_cdist_forward",
    "aten::_euclidean_dist",
    "aten::addbmm",
    "aten::addr",
    "aten::argsort",
    "aten::bernoulli_",
    "aten::binary_cross_entropy",
    "aten::binary_cross_entropy_with_logits",
    "aten::bucketize",
    "aten::cummax",
    "aten::cummin",
    "aten::dist",
    "aten::embedding_renorm_",
    "aten::empty_like",
    "aten::flip",
    "aten::full_like",
    "aten::grid_sampler_2d",
    "aten::grid_sampler_3d",
    "aten::huber_loss",
    "aten::index_fill",
    "aten::index_fill_",
    "aten::kthvalue",
    "aten::linalg_cross",
    "aten::linear",
    "aten::log_sigmoid_forward",
    "aten::logcumsumexp",
    "aten::masked_fill",
    "aten::masked_fill_",
    "aten::masked_scatter",
    "aten::masked_scatter_",
    "aten::matmul",
    "aten::mse_loss",
    "aten::mse_loss_backward",
    "aten::multi_margin_loss",
    "aten::multilabel_margin_loss_forward",
    "aten::mv",
    "aten::native_group_norm",
    "aten::native_layer_norm",
    "aten::normal",
    "aten::ones_like",
    "aten::put",
    "aten::put_",
    "aten::roll",
    "aten::rsub",
    "aten::searchsorted",
    "aten::smooth_l1_loss",
    "aten::smooth_l1_loss_backward",
    "aten::soft_margin_loss",
    "aten::sort",
    "aten::stack",
    "aten::trace",
    "aten::zeros_like"};

/// Copies whose source and result may lie on different devices.
inline constexpr std::array<std::string_view, 2> kCrossesDevices = {"aten::_to_copy",
                                                                    "aten::copy_"};

inline constexpr std::array<std::string_view, 4> kProducts = {"aten::mm", "aten::addmm",
                                                              "aten::bmm", "aten::baddbmm"};

/// Made of views and one of these.
inline constexpr std::array<std::string_view, 2> kWholeProducts = {"aten::linear", "aten::matmul"};

inline constexpr std::array<std::string_view, 3> kConvolutions = {
    "aten::convolution", "aten::convolution_backward", "aten::mkldnn_convolution"};

inline constexpr std::array<std::string_view, 2> kRecurrent = {"aten::mkldnn_rnn_layer",
                                                               "aten::mkldnn_rnn_layer_backward"};

/// What goes over windows of images, or moves whole ones, each image or channel by itself. (Not
/// what samples at places that are data: made-up numbers are no places.)
inline constexpr std::array<std::string_view, 26> kWindows = {
    "aten::max_pool2d_with_indices",
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
inline constexpr std::array<std::string_view, 21> kRows = {
    "aten::sum",
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
    "aten::embedding_dense_backward",
    "aten::_fused_rms_norm"};

/// Begins of the names of ops whose kernels start helpers however small their tensors are: those of
/// oneDNN, and what shares out channels or images instead of elements.
inline constexpr std::array<std::string_view, 13> kFansOut = {"aten::gelu",
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
inline constexpr std::array<std::string_view, 10> kCopies = {
    "aten::copy_",        "aten::clone",     "aten::fill_", "aten::zero_", "aten::cat",
    "aten::index_select", "aten::embedding", "aten::stack", "aten::flip",  "aten::constant_pad_nd"};
inline constexpr std::array<std::string_view, 3> kLookups = {"aten::index", "aten::_unsafe_index",
                                                             "aten::gather"};

/// Ops that go over their arguments once, and that no tag tells of.
inline constexpr std::array<std::string_view, 9> kLooksOnce = {
    "aten::mse_loss",
    "aten::smooth_l1_loss",
    "aten::huber_loss",
    "aten::roll",
    "aten::flip",
    "aten::binary_cross_entropy_with_logits",
    "aten::native_dropout",
    "aten::native_group_norm",
    "aten::mean"};

/// Functional collectives that write an argument which their schema does not mark.
inline constexpr std::array<std::string_view, 3> kPointToPoint = {"isend", "irecv",
                                                                  "batch_p2p_ops"};

}  // namespace lazyeng::run::op_names
