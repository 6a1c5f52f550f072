// csrc/record/special/factories.cpp: tensors made from nothing that have to be lazy: by autograd
// during the backward of lazy ones, and by ops that fill them.
#include "csrc/record/special/factories.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/TensorOptions.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>

#include "csrc/record/carried.h"
#include "csrc/run/executor.h"
#include "csrc/run/failures/ignored_warnings.h"

namespace lazyeng::record {
namespace {

thread_local int lazy_graph_task = -1;  // the newest backward pass here that recorded something

thread_local bool backward_from_lazy = false;
constexpr const char* kCarried = "lazyeng.back";  // (the same, for threads of autograd's own)

thread_local std::optional<bool> scope;  // what the innermost FactoryScope says

/// Within a kernel of plain tensors, which fills what it makes at once. (In a block the kernels of
/// plain tensors are ours.) Or in inference mode, or below the autograd kernel of a custom op,
/// where no key tells whether it is a kernel that asks.
bool in_plain_kernel(const c10::impl::LocalDispatchKeySet& keys) {
  const bool below_autograd = keys.excluded_.has(c10::DispatchKey::ADInplaceOrView) ||
                              keys.excluded_.has_all(c10::autograd_dispatch_keyset);
  return below_autograd && !keys.included_.has(c10::DispatchKey::PrivateUse1);
}

/// Within torch.tensor() and the like, which write what they make through its address, and exclude
/// all that could keep them from it.
bool makes_from_data(const c10::impl::LocalDispatchKeySet& keys) {
  constexpr c10::DispatchKeySet listeners(
      {c10::DispatchKey::Python, c10::DispatchKey::FuncTorchDynamicLayerBackMode});
  return (keys.excluded_ & listeners) == listeners;
}

bool in_backward_of_lazy() {
  const int task = torch::autograd::get_current_graph_task_id();
  if (task == -1) return false;
  if (!backward_from_lazy && task != lazy_graph_task && !carried<bool>(kCarried)) return false;
  const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  return !run::RealDispatch::active() && !in_plain_kernel(keys) && !makes_from_data(keys);
}

bool becomes_lazy(std::optional<at::Layout> layout, std::optional<at::Device> device) {
  const bool strided = !layout || *layout == c10::kStrided;
  const bool real = !device || device->is_cpu() || device->is_cuda();
  if (!strided || !real) return false;
  return scope ? *scope && !run::RealDispatch::active() : in_backward_of_lazy();
}

c10::DispatchKeySet backend(std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                            std::optional<at::Device> device) {
  if (becomes_lazy(layout, device)) return c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  return c10::DispatchKeySet(c10::computeDispatchKey(dtype, layout, device));
}

at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> layout, std::optional<at::Device> device,
                 std::optional<bool> pin_memory, std::optional<at::MemoryFormat> memory_format) {
  return at::_ops::empty_memory_format::redispatch(backend(dtype, layout, device), size, dtype,
                                                   layout, device, pin_memory, memory_format);
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                         std::optional<at::Device> device, std::optional<bool> pin_memory) {
  return at::_ops::empty_strided::redispatch(backend(dtype, layout, device), size, stride, dtype,
                                             layout, device, pin_memory);
}

}  // namespace

void note_backward_of_lazy() {
  const int task = torch::autograd::get_current_graph_task_id();
  if (task != -1) lazy_graph_task = task;
}

bool set_backward_from_lazy(bool lazy) {
  if (lazy == backward_from_lazy) return lazy;
  static const auto yes = std::make_shared<Carried<bool>>(true);
  lazy ? carry(kCarried, yes) : carry_no_more(kCarried);
  return std::exchange(backward_from_lazy, lazy);
}

FactoryScope::FactoryScope(bool lazy) : before_(std::exchange(scope, lazy)) {}
FactoryScope::~FactoryScope() { scope = before_; }

void register_factories() {
  const run::IgnoredWarnings silent;  // of second kernels for a key: here that is the purpose
  static torch::Library library(torch::Library::IMPL, "aten",
                                std::make_optional(c10::DispatchKey::BackendSelect), __FILE__,
                                __LINE__);
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
}

}  // namespace lazyeng::record
