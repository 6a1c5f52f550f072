// csrc/record/metadata/stand_ins.cpp: making them.
#include "csrc/record/metadata/stand_ins.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace lazyeng::record {
namespace {

using For = StandIns::For;

// Of all stand-ins of a call together.
constexpr int64_t kMaxElements = 1 << 14;
constexpr uint64_t kMaxBytes = 1 << 18;
// Of ops that look at each element once: a meta function written in Python takes longer.
constexpr int64_t kMaxElementsOnce = 1 << 18;
constexpr uint64_t kMaxBytesOnce = 1 << 20;
constexpr uint64_t kMaxSaneBytes = 1 << 28;

bool is_real(For whom) { return whom != For::structured_meta && whom != For::meta; }

c10::Storage filled(const std::vector<const run::GeometryData*>& over, uint64_t nbytes,
                    int integers) {
  const at::Tensor bytes =
      at::zeros({static_cast<int64_t>(nbytes)}, at::TensorOptions().dtype(at::kByte));
  for (const run::GeometryData* g : over) {
    const bool integral = c10::isIntegralType(g->dtype, /*includeBool=*/true);
    if (nbytes == 0 || (integral && integers == 0)) continue;
    // (Of bits and pairs of numbers nobody knows what a number is: zeros will do.)
    if (c10::isBitsType(g->dtype) || g->dtype == c10::ScalarType::Float4_e2m1fn_x2) continue;
    at::Tensor typed = at::empty({0}, at::TensorOptions().dtype(g->dtype));
    const int64_t count = static_cast<int64_t>(nbytes / typed.element_size());
    typed.set_(bytes.storage(), 0, {count}, {1}).fill_(integral ? integers : 1);
  }
  return bytes.storage();
}

}  // namespace

at::Tensor without_memory(For whom, const c10::Storage& storage, const run::GeometryData& g) {
  const auto key =
      whom == For::structured_meta ? c10::DispatchKey::PrivateUse1 : c10::DispatchKey::Meta;
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet({key, c10::DispatchKey::ADInplaceOrView}),
      c10::scalarTypeToTypeMeta(g.dtype));
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(g.sizes, g.strides, g.offset);
  if (g.conj) impl->_set_conj(true);
  if (g.neg) impl->_set_neg(true);
  return tensor;
}

c10::Storage no_memory(For whom, uint64_t nbytes) {
  c10::Device device(c10::kMeta);
  if (whom == For::structured_meta) device = c10::Device(c10::kPrivateUse1, 0);
  if (is_real(whom)) device = c10::kCPU;
  return c10::Storage(c10::Storage::use_byte_size_t(), nbytes, at::DataPtr(nullptr, device),
                      is_real(whom) ? nullptr : c10::GetAllocator(c10::kMeta), !is_real(whom));
}

StandIns::StandIns(const Call& call, For whom, int integers)
    : call_(call),
      whom_(whom),
      integers_(integers),
      storages_(call.tensors.size()),
      moved_by_(call.tensors.size()) {
  if (whom_ == For::kernel && !only_makes_views(call.info)) place_in_small_storages();
  for (size_t i = 0; i < call.tensors.size(); ++i)
    tensors_.push_back(call.looks[i] ? make(i) : at::Tensor());
}

/// (The value of a number is looked at: it stands for itself.)
bool StandIns::has_stand_in(size_t i) const {
  return call_.looks[i] && !call_.looks[i]->data().wrapped_number;
}

at::Tensor StandIns::make(size_t i) {
  const run::GeometryData& g = call_.looks[i]->data();
  if (!has_stand_in(i)) return call_.tensors[i].raw;
  const run::Geometry& look = *call_.looks[i];
  if (whom_ == For::one_element) return make_one_element(look, look.dtype());
  if (whom_ == For::usual_dtypes) return make_one_element(look, usual_dtypes(call_)[i]);
  if (whom_ == For::floats) return make_one_element(look, float_dtypes(call_)[i]);
  storages_[i] = storage_for(i);
  if (!is_real(whom_)) return without_memory(whom_, storages_[i], g);
  run::GeometryData placed = g;
  placed.offset -= moved_by_[i];
  return run::tensor_over(storages_[i], *run::intern(placed));
}

at::Tensor StandIns::make_one_element(const run::Geometry& look, c10::ScalarType dtype) const {
  const std::vector<int64_t> sizes(look.sizes().size(), 1);
  const auto options = at::TensorOptions().dtype(dtype);
  return c10::isIntegralType(dtype, true) ? at::full(sizes, integers_, options)
                                          : at::ones(sizes, options);
}

c10::Storage StandIns::storage_for(size_t i) {
  if (storages_[i]) return storages_[i];
  for (size_t j = 0; j < i; ++j)
    if (share_memory(call_, i, j)) return storages_[j];
  const run::ValueRef& value = call_.tensors[i].value;
  return no_memory(whom_, value ? value->var().nbytes() : call_.looks[i]->extent_bytes());
}

/// Memory for what the tensors reach, not for all of the storages that they are views of.
void StandIns::place_in_small_storages() {
  for (size_t i = 0; i < call_.tensors.size(); ++i) {
    if (!has_stand_in(i) || storages_[i]) continue;
    c10::SmallVector<size_t, 4> sharing;
    for (size_t j = i; j < call_.tensors.size(); ++j)
      if (j == i || (has_stand_in(j) && share_memory(call_, i, j))) sharing.push_back(j);
    const int64_t skipped = elements_before(sharing);
    std::vector<const run::GeometryData*> looks;
    uint64_t nbytes = 0;
    for (size_t j : sharing) {
      looks.push_back(&call_.looks[j]->data());
      nbytes = std::max(nbytes, call_.looks[j]->extent_bytes());
      moved_by_[j] = skipped;
    }
    nbytes -= std::min(nbytes, skipped * c10::elementSize(looks[0]->dtype));
    const c10::Storage storage = filled(looks, nbytes, integers_);
    for (size_t j : sharing) storages_[j] = storage;
  }
}

/// Of the shared storage, before anything that these tensors reach.
int64_t StandIns::elements_before(c10::ArrayRef<size_t> sharing) const {
  if (call_.info.storage_size_matters || call_.info.moves_metadata) return 0;
  const run::Geometry& leader = *call_.looks[sharing[0]];
  int64_t first = leader.offset();
  for (size_t j : sharing) {
    if (call_.looks[j]->dtype() != leader.dtype()) return 0;  // it counts in other elements
    first = std::min(first, call_.looks[j]->offset());
  }
  return first;
}

c10::IValue StandIns::list_at(size_t first, int64_t length, bool optional) const {
  const auto begin = tensors_.begin() + static_cast<ptrdiff_t>(first);
  if (!optional) return c10::List<at::Tensor>(std::vector<at::Tensor>(begin, begin + length));
  c10::List<std::optional<at::Tensor>> list;
  for (int64_t k = 0; k < length; ++k) {
    const at::Tensor& tensor = tensors_[first + k];
    list.push_back(tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt);
  }
  return list;
}

torch::jit::Stack StandIns::arguments() const {
  torch::jit::Stack stack;
  size_t next = 0;
  for (size_t i = 0; i < call_.args.size(); ++i) {
    const c10::IValue& arg = call_.args[i];
    const run::ArgKind kind = call_.info.args[i].kind;
    if (kind == run::ArgKind::tensor) {
      const at::Tensor& tensor = tensors_[next++];
      stack.push_back(tensor.defined() ? c10::IValue(tensor) : arg);
    } else if (arg.isInt() && run::is_list(kind)) {
      stack.push_back(list_at(next, arg.toInt(), kind == run::ArgKind::optional_tensor_list));
      next += arg.toInt();
    } else if (kind == run::ArgKind::generator) {  // no draw from the user's generator
      stack.push_back(is_real(whom_) ? c10::IValue(at::detail::createCPUGenerator())
                                     : c10::IValue());
    } else if (kind == run::ArgKind::device && !arg.isNone() && !is_real(whom_)) {
      stack.emplace_back(c10::Device(c10::kMeta));
    } else {
      stack.push_back(arg);
    }
  }
  return stack;
}

run::GeometryRef StandIns::look_of(const at::Tensor& stand_in, size_t i) const {
  run::GeometryData data = run::geometry_of(stand_in)->data();
  data.offset += moved_by_[i];
  data.device = call_.looks[i]->device();
  data.wrapped_number = false;
  return run::intern(data);
}

bool StandIns::kept_storages() const {
  for (size_t i = 0; i < tensors_.size(); ++i)
    if (storages_[i] && !tensors_[i].storage().is_alias_of(storages_[i])) return false;
  return true;
}

namespace {

/// What the name of a tensor's argument says of its dtype.
enum class Role : uint8_t { data, index, mask, target };

Role role_of(const std::string& name) {
  if (name == "index" || name == "indices" || name == "sorter") return Role::index;
  if (name == "mask") return Role::mask;
  return name == "target" ? Role::target : Role::data;
}

/// For each tensor of the call.
std::vector<Role> roles_of(const Call& call) {
  std::vector<Role> roles;
  const std::vector<c10::Argument>& arguments = call.info.handle.schema().arguments();
  for (size_t i = 0; i < call.args.size(); ++i) {
    const run::ArgKind kind = call.info.args[i].kind;
    if (kind == run::ArgKind::tensor)
      roles.push_back(role_of(arguments[i].name()));
    else if (call.args[i].isInt() && run::is_list(kind))
      roles.resize(roles.size() + call.args[i].toInt(), role_of(arguments[i].name()));
  }
  roles.resize(call.looks.size());
  return roles;
}

/// `data` for all but indices and masks; int64 for targets if these are classes.
std::vector<c10::ScalarType> dtypes_by_role(const Call& call, c10::ScalarType data, bool classes) {
  const std::vector<Role> roles = roles_of(call);
  std::vector<c10::ScalarType> dtypes;
  for (size_t i = 0; i < call.looks.size(); ++i) {
    const run::GeometryRef& look = call.looks[i];
    if (look && look->data().wrapped_number)
      dtypes.push_back(look->dtype());
    else if (roles[i] == Role::index || (roles[i] == Role::target && classes))
      dtypes.push_back(c10::kLong);
    else
      dtypes.push_back(roles[i] == Role::mask ? c10::kBool : data);
  }
  return dtypes;
}

}  // namespace

std::vector<c10::ScalarType> usual_dtypes(const Call& call) {
  const std::vector<Role> roles = roles_of(call);
  std::optional<c10::ScalarType> first, inexact;
  for (size_t i = 0; i < call.looks.size(); ++i) {
    const run::GeometryRef& look = call.looks[i];
    const bool data = roles[i] == Role::data || roles[i] == Role::target;
    if (!look || look->data().wrapped_number || !data) continue;
    first = first.value_or(look->dtype());
    if (!inexact && !c10::isIntegralType(look->dtype(), true)) inexact = look->dtype();
  }
  return dtypes_by_role(call, inexact.value_or(first.value_or(c10::kFloat)), /*classes=*/false);
}

std::vector<c10::ScalarType> float_dtypes(const Call& call) {
  return dtypes_by_role(call, c10::kFloat, /*classes=*/true);
}

bool only_makes_views(const run::OpInfo& info) {
  return info.aten && !info.writes && !info.returns.empty() &&
         info.short_name.find("nested") == std::string::npos &&
         std::all_of(info.returns.begin(), info.returns.end(),
                     [](const run::ReturnInfo& result) { return result.may_alias; });
}

bool kernel_can_be_tried(const Call& call, TrialSize size) {
  const run::OpInfo& info = call.info;
  // Kernels of other namespaces may have effects; draws from a generator that is no argument, and
  // checks of values, must not happen twice. (trusts_contents: made-up values would be addresses.)
  if (!info.aten || info.checks_values || info.trusts_contents ||
      (info.random && !info.takes_generator))
    return false;
  if (only_makes_views(info)) return true;  // the same on every device
  for (const c10::IValue& arg : call.args)
    if (arg.isDevice() && !arg.toDevice().is_cpu()) return false;
  int64_t elements = 0;
  uint64_t bytes = 0;
  for (const run::GeometryRef& look : call.looks) {
    if (!look) continue;
    if (!look->device().is_cpu()) return false;
    elements += look->numel();
    bytes += look->span_bytes();
  }
  if (size == TrialSize::any_sane) return bytes <= kMaxSaneBytes;
  return info.looks_once ? elements <= kMaxElementsOnce && bytes <= kMaxBytesOnce
                         : elements <= kMaxElements && bytes <= kMaxBytes;
}

}  // namespace lazyeng::record
