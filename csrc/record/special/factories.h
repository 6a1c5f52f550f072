// csrc/record/special/factories.h: tensors that autograd makes from nothing during the backward of
// lazy ones.
//
// A factory sees no tensor argument, so the dispatcher cannot tell that its result belongs with
// lazy tensors. Inside a backward pass that has recorded something it does: gradients that torch
// builds from zeros() come out lazy too.
#pragma once

#include <optional>

namespace lazyeng::record {

/// Remembers that the backward pass that this thread is in, if it is in one, works on lazy tensors.
void note_backward_of_lazy();

/// Says whether the backward pass that this thread is about to run starts from lazy tensors.
/// Returns what was said before (passes nest).
bool set_backward_from_lazy(bool lazy);

/// Puts our choice of backend in front of at::empty and at::empty_strided, on which all factories
/// stand. Once per process.
void register_factories();

/// While one lives, what factories of this thread make is lazy, or not lazy, wherever it is.
class FactoryScope {
 public:
  explicit FactoryScope(bool lazy);
  ~FactoryScope();
  FactoryScope(const FactoryScope&) = delete;
  FactoryScope& operator=(const FactoryScope&) = delete;

 private:
  const std::optional<bool> before_;
};

}  // namespace lazyeng::record
