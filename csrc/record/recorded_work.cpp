// csrc/record/recorded_work.cpp: the Work that the caller of a recorded collective is given.
#include "csrc/record/recorded_work.h"

#include <ATen/core/List.h>

#include <thread>

#include "csrc/record/process/signals.h"
#include "csrc/record/recorder.h"
#include "csrc/run/python_ref.h"

namespace lazyeng::record {
namespace {

bool is_point_to_point(const run::OpInfo& info) {
  return info.short_name == "send" || info.short_name.rfind("recv", 0) == 0;
}

}  // namespace

RecordedWork::RecordedWork(const Call& call, bool waits)
    : info_(call.info),
      collective_(call.collective),
      written_(call.written.begin(), call.written.end()) {
  if (!waits) return;
  for (const run::TensorArg& arg : call.tensors)
    if (arg.written && arg.raw.defined()) plain_.push_back(arg.value);
}

bool RecordedWork::isCompleted() {
  current_recorder()->flush();
  return !collective_->done()->awaited();
}

bool RecordedWork::isSuccess() const {
  return !collective_->done()->awaited() && !collective_->done()->failure();
}

std::exception_ptr RecordedWork::exception() const {
  const engine::FailurePtr failure = collective_->done()->failure();
  if (!failure) return nullptr;
  try {
    run::throw_python_error(failure);
  } catch (...) {
    return std::current_exception();
  }
}

void RecordedWork::wait_at_most(std::chrono::milliseconds timeout) {
  constexpr auto kLookEvery = std::chrono::milliseconds(1);
  const auto until = std::chrono::steady_clock::now() + timeout;
  while (!isCompleted()) {
    TORCH_CHECK(std::chrono::steady_clock::now() < until, "Operation timed out!");
    {
      const run::NoGil released;
      std::this_thread::sleep_for(kLookEvery);
    }
    if (const std::exception_ptr raised = raised_by_signal()) std::rethrow_exception(raised);
  }
  if (const engine::FailurePtr failure = collective_->done()->failure())
    run::throw_python_error(failure);
}

bool RecordedWork::wait(std::chrono::milliseconds timeout) {
  if (timeout != kNoTimeout) wait_at_most(timeout);
  for (const run::ValueRef& value : plain_) current_recorder()->wait_and_check(*value);
  return true;
}

/// As the backends say it.
void RecordedWork::check_has_results(const char* what) const {
  TORCH_CHECK(!is_point_to_point(info_), what, " not implemented.");
}

std::vector<at::Tensor> RecordedWork::result() {
  check_has_results("result()");
  return written_;
}

c10::intrusive_ptr<c10::ivalue::Future> RecordedWork::getFuture() {
  check_has_results("Work::getFuture");
  auto future =
      c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  future->markCompleted(c10::IValue(written_));
  return future;
}

int RecordedWork::sourceRank() const {
  run::StorageVar& done = *collective_->done();
  current_recorder()->wait_for(done);
  if (const engine::FailurePtr failure = done.failure()) run::throw_python_error(failure);
  return collective_->source_rank();
}

}  // namespace lazyeng::record
