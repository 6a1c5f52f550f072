// csrc/fuse/graphs/capturable.cpp: ops by their schemas, and a table of names.
//
// An op that is not known to be well is left out. One that waits for the host would make its
// capture fail, and is then left out too; but one that copies from the host's memory would be
// captured with an address that holds something else by the next launch, and nobody would see it.
#include "csrc/fuse/graphs/capturable.h"

#include <algorithm>
#include <string_view>
#include <unordered_set>

#include "csrc/fuse/op_table.h"
#include "csrc/run/device/device_queues.h"

namespace lazyeng::fuse {
namespace {

using std::string_view;

/// Beside what is pointwise, reduces, multiplies matrices, or joins groups.
const std::unordered_set<string_view>& known_names() {
  static const auto* const names = new std::unordered_set<string_view>{
      "_adaptive_avg_pool2d",
      "_adaptive_avg_pool2d_backward",
      "_conj_physical",
      "_cudnn_attention_backward",
      "_log_softmax",
      "_log_softmax_backward_data",
      "_softmax",
      "_softmax_backward_data",
      "_to_copy",
      "_fused_rms_norm",
      "_fused_rms_norm_backward",
      "_fused_sgd_",
      "_fused_adam_",
      "_fused_adamw_",
      "_native_batch_norm_legit",
      "_safe_softmax",
      "_scaled_dot_product_cudnn_attention",
      "_scaled_dot_product_flash_attention",
      "arange",
      "avg_pool2d",
      "avg_pool2d_backward",
      "cat",
      "clone",
      "constant_pad_nd",
      "convolution",
      "convolution_backward",
      "copy_",
      "cumprod",
      "cumsum",
      "embedding",
      "embedding_dense_backward",
      "empty",
      "empty_like",
      "empty_strided",
      "eye",
      "fill",
      "fill_",
      "flip",
      "full",
      "full_like",
      "gather",
      "glu",
      "glu_backward",
      "index_add",
      "index_add_",
      "index_copy",
      "index_copy_",
      "index_select",
      "masked_fill",
      "masked_fill_",
      "max_pool2d_with_indices",
      "max_pool2d_with_indices_backward",
      "native_batch_norm",
      "native_batch_norm_backward",
      "native_group_norm",
      "native_group_norm_backward",
      "native_layer_norm",
      "native_layer_norm_backward",
      "new_empty",
      "new_full",
      "new_ones",
      "new_zeros",
      "nll_loss_backward",
      "nll_loss_forward",
      "ones",
      "ones_like",
      "reflection_pad2d",
      "roll",
      "scatter",
      "scatter_",
      "scatter_add",
      "scatter_add_",
      "select_backward",
      "slice_backward",
      "stack",
      "topk",
      "tril",
      "triu",
      "upsample_bilinear2d",
      "upsample_bilinear2d_backward",
      "upsample_nearest2d",
      "upsample_nearest2d_backward",
      "zero_",
      "zeros",
      "zeros_like",
  };
  return *names;
}

/// Reductions that look at what they have found on the host.
constexpr string_view kWaiting[] = {"median", "nanmedian", "mode", "kthvalue", "histc"};

/// (Lists of tensors go to kernels by value.)
bool is_known(const run::OpInfo& op) {
  if (rule_of(op) || op.pointwise || op.work == run::Work::product ||
      op.short_name.starts_with("_foreach_") || known_names().contains(op.short_name))
    return true;
  return op.reduction && std::ranges::find(kWaiting, op.short_name) == std::end(kWaiting);
}

bool has_only_kernels(const run::OpInfo& op) {
  return op.aten && !op.takes_generator && !op.data_dependent && !op.returns_plain &&
         !op.checks_values && !op.reports_info && op.collective == run::Collectivity::none &&
         (op.indexes || is_known(op));
}

bool draws(const run::Node& node) {
  const int dropout = node.info.dropout_arg;
  return node.info.random &&
         !(dropout >= 0 && node.args[dropout].isDouble() && node.args[dropout].toDouble() == 0);
}

/// (By a mask it waits, for how many elements there are.)
bool indexes_by_numbers(const run::Node& node) {
  return std::all_of(node.tensors.begin() + 1, node.tensors.end(), [](const run::TensorArg& arg) {
    if (!arg.value) return !arg.raw.defined();
    const c10::ScalarType dtype = arg.value->geometry().dtype();
    return dtype == c10::kLong || dtype == c10::kInt;
  });
}

bool is_there(const run::Value& value, c10::Device device) {
  return value.geometry().device() == device;
}

}  // namespace

bool is_capturable(const run::Node& node) {
  if (node.device.type() != c10::kCUDA || !run::launches(node.queue) || node.discovery ||
      node.waits_for_device || node.host_copy || node.collective || !node.rewrites.empty() ||
      node.plan == 0 || !has_only_kernels(node.info) || draws(node) ||
      (node.info.indexes && !indexes_by_numbers(node)) ||
      node.stream_id != run::default_stream(node.device).id())
    return false;
  return std::ranges::all_of(node.tensors,
                             [&](const run::TensorArg& arg) {
                               return !arg.value || is_there(*arg.value, node.device);
                             }) &&
         std::ranges::all_of(node.outputs, [&](const run::ValueRef& value) {
           return !value || is_there(*value, node.device);
         });
}

}  // namespace lazyeng::fuse
