// csrc/record/special/reducers.cpp: memory that DistributedDataParallel's reducer looks at unasked.
#include "csrc/record/special/reducers.h"

#include <torch/csrc/autograd/graph_task.h>

#include <atomic>
#include <mutex>
#include <unordered_map>

#include "csrc/record/lazy_tensor.h"
#include "csrc/record/recorder.h"

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

/// The storages of buckets that were seen.
class Buckets {
 public:
  bool have(const at::Tensor& tensor) {
    if (count_.load(std::memory_order_relaxed) == 0 || !tensor.has_storage()) return false;
    std::lock_guard lock(mutex_);
    const auto found = known_.find(storage_of(tensor));
    return found != known_.end() && !found->second.expired();
  }

  void add(const at::Tensor& tensor) {
    std::lock_guard lock(mutex_);
    std::erase_if(known_, [](const auto& entry) { return entry.second.expired(); });
    known_.insert_or_assign(
        storage_of(tensor),
        Weak(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage_of(tensor))));
    count_.store(known_.size(), std::memory_order_relaxed);
  }

 private:
  using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;

  static c10::StorageImpl* storage_of(const at::Tensor& tensor) {
    return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  }

  std::mutex mutex_;
  std::unordered_map<c10::StorageImpl*, Weak> known_;  // (a weak reference keeps the address taken)
  std::atomic<size_t> count_{0};
};

Buckets& buckets() {
  static auto* const instance = new Buckets;
  return *instance;
}

}  // namespace

bool is_bucket(const at::Tensor& tensor) { return buckets().have(tensor); }

bool writes_bucket(const Call& call) {
  if (!call.writes_plain) return false;
  bool writes = false;
  for (const at::Tensor& tensor : call.written) {
    const bool found = in_graph_task() && only_cpp_knows(tensor) && is_a_part(tensor);
    if (found) buckets().add(tensor);
    writes |= found || is_bucket(tensor);
  }
  return writes;
}

bool reduces_bucket(const Call& call) {
  if (!call.writes_plain || !in_graph_task()) return false;
  bool reduces = false;
  for (const at::Tensor& tensor : call.written) {
    const bool found = only_cpp_knows(tensor);
    if (found) buckets().add(tensor);
    reduces |= found || is_bucket(tensor);
  }
  return reduces;
}

void complete_buckets() {
  if (in_graph_task()) current_recorder()->wait_for_plain_writes();
}

}  // namespace lazyeng::record
