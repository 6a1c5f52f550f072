// csrc/engine/op.cpp: collecting an op's claims on vars.
#include "csrc/engine/op.h"

#include <algorithm>
#include <vector>

namespace lazyeng::engine {

namespace {

constexpr uint32_t kLinearMerge = 8;  // longer lists are merged by sorting, once

// A write absorbs a read. Only if every claim overwrites does nobody look at the old bytes.
void merge_into(Access& access, bool write, bool overwrites) {
  access.write |= write;
  access.overwrites &= overwrites;
}

}  // namespace

void Op::add_read(Ref<Var> var) { claim(std::move(var), false, false); }

void Op::add_write(Ref<Var> var, bool overwrites) { claim(std::move(var), true, overwrites); }

void Op::claim(Ref<Var> var, bool write, bool overwrites) {
  if (accesses_.size() < kLinearMerge) {
    for (Access& access : accesses_)
      if (access.var == var) return merge_into(access, write, overwrites);
  } else {
    merged_ = false;
  }
  Access& access = accesses_.add();
  access.var = std::move(var);
  access.op = this;
  access.write = write;
  access.overwrites = overwrites;
}

void Op::merge_claims() {
  if (merged_) return;
  merged_ = true;
  std::vector<uint32_t> by_var(accesses_.size());
  for (uint32_t i = 0; i < by_var.size(); ++i) by_var[i] = i;
  std::sort(by_var.begin(), by_var.end(), [this](uint32_t a, uint32_t b) {
    const Var *x = accesses_[a].var.get(), *y = accesses_[b].var.get();
    return x != y ? std::less<>()(x, y) : a < b;
  });
  uint32_t first = by_var[0];  // the earliest claim on the var at hand
  for (size_t i = 1; i < by_var.size(); ++i) {
    Access& access = accesses_[by_var[i]];
    if (access.var == accesses_[first].var) {
      merge_into(accesses_[first], access.write, access.overwrites);
      access.var = nullptr;
    } else {
      first = by_var[i];
    }
  }
  // The order of the claims stays: which of several failed inputs is the cause depends on it.
  auto* end = std::remove_if(accesses_.begin(), accesses_.end(),
                             [](const Access& access) { return !access.var; });
  accesses_.truncate(static_cast<uint32_t>(end - accesses_.begin()));
}

}  // namespace lazyeng::engine
