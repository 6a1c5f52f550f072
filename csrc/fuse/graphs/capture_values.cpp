// csrc/fuse/graphs/capture_values.cpp: exchanging values in ops, and back.
#include "csrc/fuse/graphs/capture_values.h"

#include "csrc/run/failures/failure.h"
#include "csrc/run/failures/python_error.h"

namespace lazyeng::fuse {

CaptureValues::CaptureValues(Segment& segment, const Observation& seen,
                             const std::vector<bool>& copied, std::vector<bool> kept,
                             const c10::Stream& stream)
    : segment_(segment), kept_(std::move(kept)) {
  try {
    set_up(seen, copied, stream);
  } catch (...) {
    put_back();
    throw;
  }
}

void CaptureValues::set_up(const Observation& seen, const std::vector<bool>& copied,
                           const c10::Stream& stream) {
  const auto claims = segment_.claims();
  last_use_.resize(claims.size());
  values_of_.resize(claims.size());
  for (size_t v = 0; v < claims.size(); ++v) {
    places_.emplace(claims[v].var.get(), v);
    vars_.emplace_back();
    if (!seen.addresses[v] || copied[v])
      stand_in(v, static_cast<const run::StorageVar&>(*claims[v].var), copied[v]);
  }
  exchange_values();
  for (const Ref<engine::Op>& op : segment_.ops())
    if (Group* const group = as_group(*op)) exchange_in(*group);
  for (run::Node* node : segment_.nodes()) {
    node->captured = true;
    node->stream_id = stream.id();
  }
}

void CaptureValues::stand_in(size_t place, const run::StorageVar& var, bool copied) {
  vars_[place] = make_ref<run::StorageVar>(var.nbytes());
  if (copied)
    vars_[place]->set_engine_face(
        run::new_storage(var.engine_face().nbytes(), var.engine_face().device()));
  kept_[place] = copied || kept_[place];
  if (kept_[place]) holds_.push_back(vars_[place]);
}

run::ValueRef CaptureValues::stand_in_for(const run::ValueRef& value) {
  const auto found = values_.find(value.get());
  if (found != values_.end()) return run::ValueRef(found->second);
  const size_t place = places_.at(&value->var());
  auto made = make_ref<run::Value>(vars_[place], value->geometry_ref());
  values_.emplace(value.get(), made.get());
  values_of_[place].push_back(made.get());
  return made;
}

void CaptureValues::exchange_values() {
  segment_.for_each_value([this](run::ValueRef& value, uint32_t op) {
    const size_t place = places_.at(&value->var());
    last_use_[place] = op;
    if (!vars_[place]) return;
    run::ValueRef other = stand_in_for(value);
    exchanged_.push_back({&value, value});
    value = std::move(other);
  });
}

void CaptureValues::exchange_in(Group& group) {
  groups_.push_back({&group, group.values, group.vars});
  for (GroupValue& value : group.values)
    if (const auto found = values_.find(value.value); found != values_.end())
      value.value = found->second;
  for (GroupVar& var : group.vars)
    if (const run::StorageVarRef& other = vars_[places_.at(var.var)]) var.var = other.get();
}

CaptureValues::~CaptureValues() { put_back(); }

void CaptureValues::put_back() noexcept {
  const c10::StreamId usual = run::default_stream(segment_.nodes()[0]->device).id();
  for (run::Node* node : segment_.nodes()) {
    node->captured = false;
    node->stream_id = usual;
    node->was_not_run();
  }
  for (Exchanged& exchanged : exchanged_) *exchanged.at = std::move(exchanged.original);
  for (ExchangedInGroup& exchanged : groups_) {
    exchanged.group->values = std::move(exchanged.values);
    exchanged.group->vars = std::move(exchanged.vars);
  }
}

/// So that what is launched next may have the memory, as when the ops run one by one.
void CaptureValues::let_go_of(size_t op) {
  for (size_t v = 0; v < vars_.size(); ++v) {
    if (!vars_[v] || kept_[v] || last_use_[v] != op) continue;
    for (run::Value* value : values_of_[v]) value->drop_real();
    vars_[v]->drop_memory();
  }
}

static bool lacked_memory(const engine::Failure& failure) {
  return run::is_out_of_memory(static_cast<const run::OpFailure&>(failure).root()->error);
}

CaptureValues::Captured CaptureValues::capture_ops(size_t& captured) {
  const auto& ops = segment_.ops();
  for (captured = 0; captured < ops.size(); ++captured) {
    if (Group* const group = as_group(*ops[captured])) {
      if (!group->capture()) return Captured::none;
    } else {
      auto& node = static_cast<run::Node&>(*ops[captured]);
      if (const engine::FailurePtr failure = node.run())
        return lacked_memory(*failure) ? Captured::none : Captured::not_one;
      if (node.asks_again()) return Captured::none;
    }
    let_go_of(captured);
  }
  return Captured::all;
}

std::vector<c10::Storage> CaptureValues::memory() const {
  std::vector<c10::Storage> memory(vars_.size());
  for (size_t v = 0; v < vars_.size(); ++v)
    if (vars_[v] && kept_[v]) memory[v] = vars_[v]->engine_face();
  return memory;
}

}  // namespace lazyeng::fuse
