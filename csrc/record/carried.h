// csrc/record/carried.h: what other threads that go on for this one take along.
//
// autograd has a thread for each GPU, and gives it for each backward pass the state of the thread
// that asked for the pass (at::ThreadLocalState). Part of that is what anybody keeps by name; of
// what is kept there, these are no Python objects.
#pragma once

#include <ATen/ThreadLocalPythonObjects.h>

#include <memory>

namespace lazyeng::record {

template <class T>
struct Carried final : c10::SafePyObject {
  explicit Carried(const T& value) : SafePyObject(nullptr, nullptr), value(value) {}
  const T value;
};

template <class T>
void carry(const char* name, std::shared_ptr<Carried<T>> what) {
  at::impl::ThreadLocalPythonObjects::set(name, std::move(what));
}

inline void carry_no_more(const char* name) {
  using Objects = at::impl::ThreadLocalPythonObjects;
  if (Objects::contains(name)) Objects::set(name, nullptr);  // (torch 2.11 cannot erase)
}

/// Null if nothing of that name is carried.
template <class T>
const T* carried(const char* name) {
  using Objects = at::impl::ThreadLocalPythonObjects;
  if (!Objects::contains(name)) return nullptr;
  const auto* found = static_cast<const Carried<T>*>(Objects::get(name).get());
  return found ? &found->value : nullptr;
}

}  // namespace lazyeng::record
