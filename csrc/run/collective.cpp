// csrc/run/collective.cpp: beginning a collective of torch.distributed, and waiting for its end.
#include "csrc/run/collective.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace lazyeng::run {
namespace {

void wait_for(const at::Tensor& tensor) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("_c10d_functional::wait_tensor", "")
                             .typed<at::Tensor(const at::Tensor&)>();
  op.call(tensor);
}

void wait_for_each(const torch::jit::Stack& results) {
  for (const c10::IValue& result : results) {
    if (result.isTensor()) wait_for(result.toTensor());
    if (result.isTensorList())
      for (const at::Tensor& tensor : result.toTensorVector()) wait_for(tensor);
  }
}

/// Why a collective was not begun, while nobody has been told. Held weakly: a failure that is gone
/// has been warned of.
struct KeptBack {
  std::mutex mutex;
  std::weak_ptr<FailureRoot> root;
  std::string last;
};

KeptBack& latest() {
  static KeptBack* const instance = new KeptBack;
  return *instance;
}

}  // namespace

Collective::Collective(const OpInfo& info, StorageVarRef order)
    : info_(info),
      order_(std::move(order)),
      done_(info.collective == Collectivity::work ? make_ref<StorageVar>(0) : nullptr) {}

void Collective::begin(torch::jit::Stack results) {
  results_ = std::move(results);
  begun_ = true;
}

torch::jit::Stack Collective::end() {
  torch::jit::Stack results = std::move(results_);
  if (info_.collective == Collectivity::functional) {
    wait_for_each(results);
    return results;
  }
  const auto work = results.back().toCustomClass<c10d::Work>();
  results.pop_back();
  // (Null: this process is none of the group's, or the backend had nothing to do.)
  if (!work) return results;
  work->wait();
  if (info_.short_name.rfind("recv", 0) == 0) source_rank_ = work->sourceRank();
  return results;
}

void Collective::not_begun(const OpFailure& why) {
  if (begun_) return;
  std::lock_guard lock(latest().mutex);
  latest().root = why.root();
  latest().last = why.last();
}

engine::FailurePtr Collective::kept_back() const {
  if (begun_) return nullptr;
  std::shared_ptr<FailureRoot> root;
  std::string last;
  {
    std::lock_guard lock(latest().mutex);
    root = latest().root.lock();
    last = latest().last;
  }
  if (!root || root->reported) return nullptr;
  return std::make_shared<OpFailure>(std::move(root), std::move(last));
}

}  // namespace lazyeng::run
