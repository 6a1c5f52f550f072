// csrc/record/special/reducers.cpp: memory that DistributedDataParallel's reducer looks at unasked.
#include "csrc/record/special/reducers.h"

#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

#include "csrc/record/lazy_tensor.h"
#include "csrc/record/recorder.h"
#include "csrc/record/thread_mode.h"

namespace lazyeng::record {
namespace {

bool in_graph_task() { return torch::autograd::get_current_graph_task_id() != -1; }

bool only_cpp_knows(const at::Tensor& tensor) {
  return !lazy_impl(tensor) && tensor.has_storage() &&
         tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj() == nullptr;
}

/// (A gradient that nobody has looked at has its storage for itself.)
bool is_a_part(const at::Tensor& tensor) {
  return tensor.nbytes() < tensor.unsafeGetTensorImpl()->unsafe_storage().nbytes();
}

}  // namespace

bool writes_bucket(const Call& call) {
  return call.writes_plain && in_graph_task() &&
         std::ranges::any_of(call.written, [](const at::Tensor& tensor) {
           return only_cpp_knows(tensor) && is_a_part(tensor);
         });
}

bool reduces_bucket(const Call& call) {
  return call.writes_plain && in_graph_task() && std::ranges::any_of(call.written, only_cpp_knows);
}

void complete_buckets() {
  if (in_graph_task() && thread_mode().inside()) current_recorder()->wait_for_plain_writes();
}

}  // namespace lazyeng::record
