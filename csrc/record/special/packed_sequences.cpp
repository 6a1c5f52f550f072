// csrc/record/special/packed_sequences.cpp: packing as a choice of rows.
//
// How many steps a packed sequence has, and how many words each, is decided by the lengths. Torch's
// kernel is handed the padded tensor too, so it would wait for that, and with it for the whole step
// of the optimizer before. Here the lengths are read; the data are rows of the padded tensor, which
// is recorded; and the sizes of the steps are there at once, as the layers that follow read them.
#include "csrc/record/special/packed_sequences.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "csrc/record/lazy_tensor.h"
#include "csrc/record/library.h"
#include "csrc/record/recorder.h"
#include "csrc/run/executor.h"
#include "csrc/run/failures/ignored_warnings.h"

namespace lazyeng::record {
namespace {

/// A batch of padded sequences, the dim of the steps and that of the sequences first.
struct Padded {
  at::Tensor data;
  bool batch_first;

  int64_t num_steps() const { return data.size(batch_first ? 1 : 0); }
  int64_t num_sequences() const { return data.size(batch_first ? 0 : 1); }
  int64_t row(int64_t step, int64_t sequence) const {
    return batch_first ? sequence * num_steps() + step : step * num_sequences() + sequence;
  }
  /// Both dims are one of rows, without a copy.
  bool has_rows() const {
    return data.dim() >= 2 && data.numel() > 0 && data.stride(0) == data.size(1) * data.stride(1);
  }
  /// Of which index_select takes whatever torch's kernel does.
  bool has_usual_dtype() const { return !c10::isBarebonesUnsignedType(data.scalar_type()); }
};

/// Longest first, none empty or longer than the padding. (What does not fit is torch's to refuse.)
bool are_lengths_of(const at::Tensor& lengths, const Padded& padded) {
  if (lengths.dim() != 1 || lengths.scalar_type() != c10::kLong || !lengths.device().is_cpu() ||
      !lengths.is_contiguous() || lengths.numel() != padded.num_sequences())
    return false;
  const int64_t* const begin = lengths.const_data_ptr<int64_t>();
  const int64_t* const end = begin + lengths.numel();
  return std::is_sorted(begin, end, std::greater<>()) && end[-1] > 0 &&
         *begin <= padded.num_steps();
}

at::Tensor integers(int64_t count) {
  const run::RealDispatch below;
  return at::empty({count}, at::kLong);
}

/// Of each step: of how many sequences it is.
at::Tensor batch_sizes_of(const at::Tensor& lengths) {
  const int64_t* const length = lengths.const_data_ptr<int64_t>();
  const at::Tensor sizes = integers(length[0]);
  int64_t* const size = sizes.mutable_data_ptr<int64_t>();
  int64_t longer = lengths.numel();
  for (int64_t step = 0; step < length[0]; ++step) {
    while (length[longer - 1] <= step) --longer;
    size[step] = longer;
  }
  return sizes;
}

at::Tensor rows_of(const Padded& padded, const at::Tensor& batch_sizes) {
  const int64_t* const size = batch_sizes.const_data_ptr<int64_t>();
  const int64_t num_steps = batch_sizes.numel();
  const at::Tensor rows = integers(std::accumulate(size, size + num_steps, int64_t{0}));
  int64_t* row = rows.mutable_data_ptr<int64_t>();
  for (int64_t step = 0; step < num_steps; ++step)
    for (int64_t sequence = 0; sequence < size[step]; ++sequence)
      *row++ = padded.row(step, sequence);
  return rows;
}

/// Waits for it, and raises its error.
at::Tensor value_of(const at::Tensor& tensor) {
  wait_for_plain(tensor);
  return plain_of(tensor);
}

at::Tensor made_lazy(const at::Tensor& plain) {
  static const c10::OperatorHandle lift =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::lift_fresh", "");
  torch::jit::Stack stack = {plain};
  lift.callBoxedForDispatchKey(c10::DispatchKey::PrivateUse1, stack);
  return stack[0].toTensor();
}

/// Arguments: input, lengths, batch_first.
void pack(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const Padded padded{torch::jit::peek(*stack, 0, 3).toTensor(),
                      torch::jit::peek(*stack, 2, 3).toBool()};
  if (!lazy_impl(padded.data) || !padded.data.device().is_cpu() || !padded.has_rows() ||
      !padded.has_usual_dtype())
    return record_whole(op, stack);
  const at::Tensor lengths = value_of(torch::jit::peek(*stack, 1, 3).toTensor());
  if (!are_lengths_of(lengths, padded)) return record_whole(op, stack);
  const at::Tensor batch_sizes = batch_sizes_of(lengths);
  const at::Tensor rows = padded.data.flatten(0, 1).index_select(0, rows_of(padded, batch_sizes));
  torch::jit::drop(*stack, 3);
  stack->insert(stack->end(), {rows, made_lazy(batch_sizes)});
}

}  // namespace

void register_packed_sequences() {
  static torch::Library backend(torch::Library::IMPL, "aten",
                                std::make_optional(c10::DispatchKey::PrivateUse1), __FILE__,
                                __LINE__);
  const run::IgnoredWarnings silent;  // it replaces the kernel that records
  backend.impl("_pack_padded_sequence", torch::CppFunction::makeFromBoxedFunction<&pack>());
}

}  // namespace lazyeng::record
