// csrc/engine/ref.h: intrusive reference counting for vars, ops and what hangs on them.
//
// Counts are atomic: a Ref may be copied and dropped on any thread; one Ref object is not to be
// shared between threads without a lock, as with std::shared_ptr.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace lazyeng {

class RefCounted {
 public:
  RefCounted() = default;
  RefCounted(const RefCounted&) = delete;
  RefCounted& operator=(const RefCounted&) = delete;

  void retain() const noexcept { count_.fetch_add(1, std::memory_order_relaxed); }

  void release() const noexcept {
    // acq_rel: the deleting thread must see every write made under the other references.
    if (count_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

  /// Takes a reference unless the object is already being destroyed (weak lookups in a table whose
  /// entries remove themselves in their destructor).
  bool try_retain() const noexcept {
    uint32_t seen = count_.load(std::memory_order_relaxed);
    while (seen != 0)
      if (count_.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel)) return true;
    return false;
  }

  uint32_t use_count() const noexcept { return count_.load(std::memory_order_acquire); }

 protected:
  virtual ~RefCounted() = default;

 private:
  mutable std::atomic<uint32_t> count_{1};  // a new object belongs to whoever made it: Ref::adopt
};

/// An owning pointer to a RefCounted object.
template <class T>
class Ref {
 public:
  Ref() = default;
  Ref(std::nullptr_t) {}
  explicit Ref(T* shared) : ptr_(shared) {
    if (ptr_) ptr_->retain();
  }
  static Ref adopt(T* fresh) {
    Ref ref;
    ref.ptr_ = fresh;
    return ref;
  }
  Ref(const Ref& other) : Ref(other.ptr_) {}
  Ref(Ref&& other) noexcept : ptr_(std::exchange(other.ptr_, nullptr)) {}
  template <class U>
  Ref(Ref<U> other) noexcept : ptr_(other.detach()) {}
  Ref& operator=(Ref other) noexcept {
    std::swap(ptr_, other.ptr_);
    return *this;
  }
  ~Ref() {
    if (ptr_) ptr_->release();
  }

  T* get() const noexcept { return ptr_; }
  T* operator->() const noexcept { return ptr_; }
  T& operator*() const noexcept { return *ptr_; }
  explicit operator bool() const noexcept { return ptr_ != nullptr; }
  bool operator==(const Ref& other) const noexcept { return ptr_ == other.ptr_; }
  /// Gives up ownership without releasing.
  T* detach() noexcept { return std::exchange(ptr_, nullptr); }

 private:
  T* ptr_ = nullptr;
};

template <class T, class... Args>
Ref<T> make_ref(Args&&... args) {
  return Ref<T>::adopt(new T(std::forward<Args>(args)...));
}

}  // namespace lazyeng
