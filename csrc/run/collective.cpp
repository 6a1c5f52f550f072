// csrc/run/collective.cpp: the end of a collective of torch.distributed.
#include "csrc/run/collective.h"

#include <ATen/core/dispatch/Dispatcher.h>

namespace lazyeng::run {
namespace {

void wait_for(const at::Tensor& tensor) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("_c10d_functional::wait_tensor", "")
                             .typed<at::Tensor(const at::Tensor&)>();
  op.call(tensor);
}

}  // namespace

void wait_for_collective(const torch::jit::Stack& results) {
  for (const c10::IValue& result : results) {
    if (result.isTensor()) wait_for(result.toTensor());
    if (result.isTensorList())
      for (const at::Tensor& tensor : result.toTensorVector()) wait_for(tensor);
  }
}

}  // namespace lazyeng::run
