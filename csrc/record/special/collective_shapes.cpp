// csrc/record/special/collective_shapes.cpp: which collectives are sure to be accepted by a
// backend.
#include "csrc/record/special/collective_shapes.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace lazyeng::record {
namespace {

using Lists = std::vector<std::vector<at::Tensor>>;

/// The arguments of a call, as the schema names them.
class Arguments {
 public:
  Arguments(const run::OpInfo& info, c10::ArrayRef<c10::IValue> values)
      : schema_(info.handle.schema()), values_(values) {}

  const c10::IValue* find(std::string_view name) const {
    for (size_t i = 0; i < values_.size(); ++i)
      if (schema_.arguments()[i].name() == name) return &values_[i];
    return nullptr;
  }
  int64_t number(std::string_view name) const { return find(name)->toInt(); }
  std::vector<int64_t> numbers(std::string_view name) const { return find(name)->toIntVector(); }
  const c10d::ProcessGroup& group() const {
    return *find("process_group")->toCustomClass<c10d::ProcessGroup>();
  }

  /// Of the n-th argument; a tensor is a list of one, a list of tensors one list.
  Lists lists(size_t n) const {
    const c10::IValue& value = values_[n];
    if (value.isTensor()) return {{value.toTensor()}};
    if (value.isTensorList()) return {value.toTensorVector()};
    Lists result;
    for (const c10::IValue& list : value.toListRef()) result.push_back(list.toTensorVector());
    return result;
  }

 private:
  const c10::FunctionSchema& schema_;
  const c10::ArrayRef<c10::IValue> values_;
};

constexpr std::array<c10::ScalarType, 8> kDtypes = {c10::kFloat,    c10::kDouble, c10::kHalf,
                                                    c10::kBFloat16, c10::kInt,    c10::kLong,
                                                    c10::kChar,     c10::kByte};

bool is_usual(const at::Tensor& tensor, const at::Tensor& first) {
  return tensor.defined() && tensor.layout() == c10::kStrided &&
         tensor.device() == first.device() && tensor.scalar_type() == first.scalar_type() &&
         tensor.is_contiguous() &&
         std::find(kDtypes.begin(), kDtypes.end(), tensor.scalar_type()) != kDtypes.end();
}

/// All of one dtype and device, which the backends know, and without gaps.
bool are_usual(const Lists& lists, at::Tensor& first) {
  for (const std::vector<at::Tensor>& list : lists)
    for (const at::Tensor& tensor : list) {
      if (!first.defined()) first = tensor;
      if (!is_usual(tensor, first)) return false;
    }
  return true;
}

bool have_one_shape(const Lists& lists, c10::IntArrayRef sizes) {
  for (const std::vector<at::Tensor>& list : lists)
    for (const at::Tensor& tensor : list)
      if (tensor.sizes() != sizes) return false;
  return true;
}

bool is_one_tensor(const Lists& lists) { return lists.size() == 1 && lists[0].size() == 1; }

/// One list with a tensor for each process; of all processes, or of the root alone.
bool is_one_list(const Lists& lists, const Arguments& arguments) {
  const c10d::ProcessGroup& group = arguments.group();
  if (arguments.find("root_rank") && arguments.number("root_rank") != group.getRank())
    return lists.empty();
  return lists.size() == 1 && lists[0].size() == size_t(group.getSize());
}

/// `whole` is the parts of all processes, one after another.
bool are_parts(const std::vector<at::Tensor>& wholes, const std::vector<at::Tensor>& parts,
               int64_t processes) {
  if (wholes.size() != parts.size() || wholes.empty()) return false;
  for (size_t i = 0; i < wholes.size(); ++i) {
    if (parts[i].dim() == 0) return false;
    std::vector<int64_t> sizes = parts[i].sizes().vec();
    sizes[0] *= processes;
    if (wholes[i].sizes() != c10::IntArrayRef(sizes)) return false;
  }
  return true;
}

bool splits(const at::Tensor& tensor, const std::vector<int64_t>& sizes, int64_t processes) {
  if (tensor.dim() == 0) return false;
  if (sizes.empty()) return tensor.size(0) % processes == 0;
  return sizes.size() == size_t(processes) &&
         std::all_of(sizes.begin(), sizes.end(), [](int64_t size) { return size >= 0; }) &&
         std::accumulate(sizes.begin(), sizes.end(), int64_t{0}) == tensor.size(0);
}

bool is_usual_reduction(const Arguments& arguments) {
  const c10::IValue* const value = arguments.find("reduce_op");
  if (!value) return true;
  const auto op = static_cast<c10d::ReduceOp::RedOpType>(*value->toCustomClass<c10d::ReduceOp>());
  return op == c10d::ReduceOp::SUM || op == c10d::ReduceOp::PRODUCT || op == c10d::ReduceOp::MIN ||
         op == c10d::ReduceOp::MAX;
}

bool has_usual_ranks(const Arguments& arguments) {
  const c10d::ProcessGroup& group = arguments.group();
  for (const char* name : {"root_rank", "dst", "src"})
    if (arguments.find(name)) {
      const int64_t rank = arguments.number(name);
      if (rank < 0 || rank >= group.getSize()) return false;
      if (name != std::string_view("root_rank") && rank == group.getRank()) return false;
    }
  return !arguments.find("root_tensor") || arguments.number("root_tensor") == 0;
}

bool fit(const std::string& op, const Arguments& arguments, const Lists& first, const Lists& second,
         c10::IntArrayRef sizes) {
  const int64_t processes = arguments.group().getSize();
  if (op == "allreduce_" || op == "broadcast_" || op == "reduce_" || op == "send" ||
      op == "recv_" || op == "recv_any_source_")
    return is_one_tensor(first);
  if (op == "allreduce_coalesced_") return !first.empty() && !first[0].empty();
  if (op == "allgather_" || op == "gather_")
    return is_one_list(first, arguments) && is_one_tensor(second) && have_one_shape(first, sizes) &&
           have_one_shape(second, sizes);
  if (op == "reduce_scatter_" || op == "scatter_")
    return is_one_tensor(first) && is_one_list(second, arguments) && have_one_shape(second, sizes);
  if (op == "_allgather_base_" || op == "allgather_into_tensor_coalesced_")
    return are_parts(first[0], second[0], processes);
  if (op == "_reduce_scatter_base_" || op == "reduce_scatter_tensor_coalesced_")
    return are_parts(second[0], first[0], processes);
  if (op == "alltoall_")
    return is_one_list(first, arguments) && is_one_list(second, arguments) &&
           have_one_shape(first, sizes) && have_one_shape(second, sizes);
  if (op == "alltoall_base_")
    return splits(first[0][0], arguments.numbers("output_split_sizes"), processes) &&
           splits(second[0][0], arguments.numbers("input_split_sizes"), processes) &&
           first[0][0].sizes().slice(1) == second[0][0].sizes().slice(1);
  return false;
}

}  // namespace

bool is_accepted(const run::OpInfo& info, c10::ArrayRef<c10::IValue> arguments) {
  const Arguments named(info, arguments);
  if (!named.find("process_group") || !has_usual_ranks(named) || !is_usual_reduction(named))
    return false;
  if (const c10::IValue* sparse = named.find("sparse_indices"); sparse && !sparse->isNone())
    return false;
  const bool two = info.args.size() > 1 && (info.args[1].kind == run::ArgKind::tensor ||
                                            info.args[1].kind == run::ArgKind::tensor_list ||
                                            info.args[1].kind == run::ArgKind::tensor_lists);
  const Lists first = named.lists(0), second = two ? named.lists(1) : Lists();
  at::Tensor any;
  if (!are_usual(first, any) || !are_usual(second, any) || !any.defined()) return false;
  return fit(info.short_name, named, first, second, any.sizes());
}

}  // namespace lazyeng::record
